"""Load an encoder whose transformer runs in another runtime on the CPU, without torch's weights of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from ultimate_embedder.config import Backend
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.models.encoder import Encoder, as_encoder, load_encoder
from ultimate_embedder.models.exported import GraphWish, checked_graph
from ultimate_embedder.models.fused import describe_fused, read_checked
from ultimate_embedder.models.int8 import group_size
from ultimate_embedder.models.runtimes import RUNTIMES
from ultimate_embedder.models.trust import require_trust
from ultimate_embedder.models.without_weights import load_without_weights
from ultimate_embedder.types import ResolvedModel

PACKAGES: dict[Backend, tuple[str, ...]] = {
    "torch": (),
    "onnx": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "onnx"),
}


def has_backend(backend: Backend) -> bool:
    """Whether the packages of a backend are installed."""
    return not _missing(backend)


def require_backend(backend: Backend) -> None:
    """Raise `UsageError` if the packages of a backend are not installed."""
    if missing := _missing(backend):
        raise UsageError(
            f"--backend {backend} needs {' and '.join(missing)}: pip install 'ultimate-embedder[{backend}]'"
        )


def int8_backend() -> Backend:
    """OpenVINO, whose vectors do not depend on each other; ONNX Runtime where only that is installed."""
    if has_backend("openvino") or not has_backend("onnx"):  # where neither is, the error names the extra to install
        return "openvino"
    return "onnx"


def _missing(backend: Backend) -> list[str]:
    return [package for package in PACKAGES[backend] if importlib.util.find_spec(package) is None]


def load_on_backend(
    model: ResolvedModel,
    backend: Backend,
    max_tokens: int | None = None,
    trusted: Sequence[str] = (),
    *,
    int8: bool = False,
    way: str | None = None,
    token_cap: int | None = None,
) -> Encoder:
    """An encoder on another runtime, exported and checked on first use; `way` is how int8 products are computed."""
    require_backend(backend)
    graph = checked_graph(GraphWish(model, backend, int8, max_tokens, tuple(trusted), token_cap))
    encoder = _without_transformer(model, max_tokens, trusted, token_cap)
    group = group_size(way, graph.divisor) if way is not None else 0
    dtype = "int8" if int8 else "float32"
    return encoder.with_runtime(RUNTIMES[backend](graph.path, dtype, group))


def _without_transformer(
    model: ResolvedModel, max_tokens: int | None, trusted: Sequence[str], token_cap: int | None
) -> Encoder:
    """The tokenizer, and what comes after the transformer with its weights; those of the transformer are not there."""
    require_trust(model.spec, model.path, trusted)
    checked = read_checked(model.digest)
    if checked is not None and checked.settings is not None:  # sentence-transformers need not be imported
        return as_encoder(describe_fused(model.path, checked.settings), model, max_tokens, token_cap)
    try:
        encoder = load_without_weights(model, "float32", max_tokens, trusted, token_cap=token_cap)
        if not any(list(module.parameters()) for module in list(encoder.model)[1:]):
            return encoder
    except ModelError:  # not known from its config files
        pass
    encoder = load_encoder(model, "float32", "cpu", max_tokens, trusted, token_cap=token_cap)
    encoder.model[0].to("meta")
    return encoder
