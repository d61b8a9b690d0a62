"""The runtimes that compute the layers of a model: torch, ONNX Runtime, OpenVINO."""

from ultimate_embedder.models.runtimes.base import GraphRuntime, Runtime
from ultimate_embedder.models.runtimes.onnx import OnnxRuntime
from ultimate_embedder.models.runtimes.openvino import OpenVinoRuntime
from ultimate_embedder.models.runtimes.torch import TorchRuntime

__all__ = ["GraphRuntime", "OnnxRuntime", "OpenVinoRuntime", "Runtime", "TorchRuntime"]
