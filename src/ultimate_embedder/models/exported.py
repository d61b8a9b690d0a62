"""Other runtimes for the CPU: the transformer exported once, cached by its digest, checked before it is used.

Tokenising, pooling and normalising stay as they are; only the transformer's layers run elsewhere.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ultimate_embedder.config import Backend, cache_folder
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.files import whole_file
from ultimate_embedder.machine import usable_cores
from ultimate_embedder.models.canary import CANARY, row_cosines
from ultimate_embedder.models.encoder import Encoder
from ultimate_embedder.models.loaded import TokenBatch
from ultimate_embedder.types import ResolvedModel

if TYPE_CHECKING:
    import torch

AGREEMENT = {"float32": 0.9999, "int8": 0.9}  # worst cosine on the canary; less means a broken export
OPSET = 17
PACKAGES: dict[Backend, tuple[str, ...]] = {
    "torch": (),
    "onnx": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "onnx"),
}


class Runtime(ABC):
    """Runs an exported transformer; may be called from several threads at once."""

    @abstractmethod
    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Token vectors of a padded batch."""


class OnnxRuntime(Runtime):
    """ONNX Runtime, one core a call: workers call it at the same time."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Token vectors of a padded batch."""
        return np.asarray(self._session.run(None, inputs)[0])


class OpenVino(Runtime):
    """OpenVINO, one stream a worker."""

    def __init__(self, path: Path) -> None:
        openvino = _import_openvino()
        cores = usable_cores()
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": cores, "NUM_STREAMS": cores}
        self._compiled = openvino.Core().compile_model(str(path), "CPU", settings)

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Token vectors of a padded batch."""
        request = self._compiled.create_infer_request()
        return np.array(next(iter(request.infer(inputs).values())))


class ExportedEncoder(Encoder):
    """An encoder whose layers run in another runtime."""

    def use(self, runtime: Runtime, dtype: str) -> None:
        """Leave torch's weights alone from now on."""
        self.runtime = runtime
        self.dtype = dtype

    def can_pack(self) -> bool:
        """The exported graph has rows and columns."""
        return False

    def replica(self) -> ExportedEncoder:
        """The same: weights are shared."""
        return self

    def forward(self, batch: TokenBatch) -> torch.Tensor:
        """Run the exported layers, then the model's own pooling and the rest."""
        import torch

        names = [name for name in self._input_names if name in batch.features]
        with torch.inference_mode():
            hidden = torch.from_numpy(self.runtime.run({name: batch.features[name].numpy() for name in names}))
            features = {**self._constants, **batch.features, "token_embeddings": hidden}
            for module in list(self.model)[1:]:
                features = module(features)
            vectors: torch.Tensor = features[self.output]
            return vectors.float()


def _import_openvino() -> Any:
    """Import it without the package by which it reports its use: that one looks up an address at every start."""
    if "openvino" not in sys.modules and "openvino_telemetry" not in sys.modules:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment] # as if it were not installed
        try:
            return importlib.import_module("openvino")
        finally:
            del sys.modules["openvino_telemetry"]
    return importlib.import_module("openvino")


def use_backend(encoder: Encoder, model: ResolvedModel, backend: Backend, int8: bool) -> Encoder:
    """The same encoder on another runtime, exported if it was not before; refuses one that does not agree."""
    require_backend(backend)
    if not encoder.tokenizes:
        raise ModelError(
            f"--backend {backend}: {model.name} wants inputs that cannot be exported. Use --backend torch."
        )
    folder = cache_folder() / "exported" / model.digest[:32]
    path = folder / "model.onnx"
    if not path.exists():
        _export(encoder, model, backend, path)
    if int8:
        path = _quantized(path, folder / "model.int8.onnx")
    twin = ExportedEncoder.__new__(ExportedEncoder)
    twin.__dict__.update(encoder.__dict__)
    twin.use(OnnxRuntime(path) if backend == "onnx" else OpenVino(path), "int8" if int8 else "float32")
    _check(twin, encoder, backend)
    return twin


def require_backend(backend: Backend) -> None:
    """Refuse a backend whose packages are not installed."""
    missing = [package for package in PACKAGES[backend] if importlib.util.find_spec(package) is None]
    if missing:
        raise UsageError(
            f"--backend {backend} needs {' and '.join(missing)}: pip install 'ultimate-embedder[{backend}]'"
        )


def _export(encoder: Encoder, model: ResolvedModel, backend: Backend, path: Path) -> None:
    import torch

    transformer = encoder.transformer
    names = list(encoder._input_names)

    class TokenVectors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = transformer

        def forward(self, *inputs: Any) -> Any:
            return self.transformer(**dict(zip(names, inputs, strict=True))).last_hidden_state

    texts = encoder.tokenize(CANARY)
    features = encoder.batch(texts, np.arange(len(CANARY))).features
    axes = {name: {0: "rows", 1: "tokens"} for name in [*names, "token_vectors"]}
    try:
        with warnings.catch_warnings(), torch.inference_mode(), whole_file(path) as file:
            warnings.simplefilter("ignore")
            torch.onnx.export(
                TokenVectors().eval(),
                tuple(features[name] for name in names),
                file,  # type: ignore[arg-type]
                input_names=names,
                output_names=["token_vectors"],
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,  # the other exporter takes ten times as long, and more packages
            )
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelError(
            f"--backend {backend}: {model.name} cannot be exported ({first}). Use --backend torch."
        ) from error


def _quantized(path: Path, target: Path) -> Path:
    if not target.exists():
        from onnxruntime.quantization import QuantType, quantize_dynamic

        part = target.with_suffix(".partial")
        logging.getLogger().addFilter(_is_not_advice)
        try:
            quantize_dynamic(path, part, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul"])
        finally:
            logging.getLogger().removeFilter(_is_not_advice)
        part.replace(target)
    return target


def _is_not_advice(record: logging.LogRecord) -> bool:
    return "pre-processing before quantization" not in record.getMessage()


def _check(exported: ExportedEncoder, encoder: Encoder, backend: Backend) -> None:
    texts = encoder.tokenize(CANARY)
    batches = [np.arange(len(CANARY)), np.array([0])]  # with padding, and without
    for rows in batches:
        reference = encoder.forward(encoder.batch(texts, rows)).numpy()
        ours = exported.forward(exported.batch(texts, rows)).numpy()
        agreement = float(row_cosines(ours, reference).min())
        if not agreement >= AGREEMENT[exported.dtype]:
            raise ModelError(
                f"--backend {backend}: the exported {encoder.name} does not agree with torch (cosine {agreement:.4f}). "
                "Use --backend torch."
            )
