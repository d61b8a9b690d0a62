"""The runtimes that compute the layers of a model: torch, ONNX Runtime, OpenVINO."""

from ultimate_embedder.models.runtimes.base import GraphRuntime, Runtime
from ultimate_embedder.models.runtimes.onnx import OnnxRuntime
from ultimate_embedder.models.runtimes.openvino import OpenVinoRuntime
from ultimate_embedder.models.runtimes.torch import TorchRuntime

RUNTIMES: dict[str, type[OnnxRuntime] | type[OpenVinoRuntime]] = {"onnx": OnnxRuntime, "openvino": OpenVinoRuntime}

__all__ = ["RUNTIMES", "GraphRuntime", "OnnxRuntime", "OpenVinoRuntime", "Runtime", "TorchRuntime"]
