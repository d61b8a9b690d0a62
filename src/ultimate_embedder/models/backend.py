"""Run an encoder in another runtime on the CPU: its transformer is exported once, cached by digest, and checked."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from ultimate_embedder.config import Backend, cache_folder
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.models.canary import CANARY, row_cosines
from ultimate_embedder.models.encoder import Encoder
from ultimate_embedder.models.runtimes import GraphRuntime, OnnxRuntime, OpenVinoRuntime
from ultimate_embedder.models.runtimes.export import EXPORT_ERRORS, export_onnx, quantize_onnx
from ultimate_embedder.types import ResolvedModel

LEAST_COSINE = {"float32": 0.9999, "int8": 0.9}  # of the worst canary text; less means that the export is wrong
PACKAGES: dict[Backend, tuple[str, ...]] = {
    "torch": (),
    "onnx": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "onnx"),
}
RUNTIMES: dict[Backend, type[OnnxRuntime] | type[OpenVinoRuntime]] = {"onnx": OnnxRuntime, "openvino": OpenVinoRuntime}


def require_backend(backend: Backend) -> None:
    """Raise `UsageError` if the packages of a backend are not installed."""
    missing = [package for package in PACKAGES[backend] if importlib.util.find_spec(package) is None]
    if missing:
        raise UsageError(
            f"--backend {backend} needs {' and '.join(missing)}: pip install 'ultimate-embedder[{backend}]'"
        )


def use_backend(encoder: Encoder, model: ResolvedModel, backend: Backend, int8: bool) -> Encoder:
    """The same encoder on another runtime, exported on first use; raises if its vectors differ from torch's."""
    require_backend(backend)
    if not encoder.tokenizes:
        raise ModelError(
            f"--backend {backend}: {model.name} needs inputs that cannot be exported. Use --backend torch."
        )
    path = _exported(encoder, model, backend, int8)
    runtime: GraphRuntime = RUNTIMES[backend](path, "int8" if int8 else "float32", encoder.tokenizer.input_names)
    other = encoder.with_runtime(runtime)
    _check(other, encoder, backend)
    return other


def _exported(encoder: Encoder, model: ResolvedModel, backend: Backend, int8: bool) -> Path:
    folder = cache_folder() / "exported" / model.digest[:32]
    path, int8_path = folder / "model.onnx", folder / "model.int8.onnx"
    if not path.exists():
        example = encoder.batch(encoder.tokenize(CANARY), np.arange(len(CANARY))).features
        try:
            export_onnx(encoder.transformer, example, encoder.tokenizer.input_names, path)
        except EXPORT_ERRORS as error:
            first = str(error).strip().splitlines()[0]
            raise ModelError(
                f"--backend {backend}: {model.name} cannot be exported ({first}). Use --backend torch."
            ) from error
    if int8 and not int8_path.exists():
        quantize_onnx(path, int8_path)
    return int8_path if int8 else path


def _check(other: Encoder, encoder: Encoder, backend: Backend) -> None:
    texts = encoder.tokenize(CANARY)
    for rows in (np.arange(len(CANARY)), np.array([0])):  # with padding, and without
        reference = encoder.forward(encoder.batch(texts, rows)).numpy()
        ours = other.forward(other.batch(texts, rows)).numpy()
        cosine = float(row_cosines(ours, reference).min())
        if not cosine >= LEAST_COSINE[other.dtype]:
            raise ModelError(
                f"--backend {backend}: the exported {encoder.name} differs from torch (cosine {cosine:.4f}). "
                "Use --backend torch."
            )
