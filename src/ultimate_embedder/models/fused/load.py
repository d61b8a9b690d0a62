"""Load a fused model. Apart from the others, so that torch is imported when a model is loaded, not before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ultimate_embedder.errors import ModelError
from ultimate_embedder.models.config_files import read_modules
from ultimate_embedder.models.fused.settings import FusedSettings, Kernels, NotFusibleError

if TYPE_CHECKING:
    import torch

    from ultimate_embedder.models.fused.model import FusedModel


def load_fused(folder: Path, settings: FusedSettings, kernels: Kernels) -> FusedModel:
    """Load a model from its files; raises `NotFusibleError` if its weights are not those of such a model."""
    return _build(folder, settings, kernels, _tensors)


def describe_fused(folder: Path, settings: FusedSettings) -> FusedModel:
    """The same with weights that have shapes and no bytes, where another runtime computes."""
    return _build(folder, settings, Kernels(), _shapes)


def _build(
    folder: Path, settings: FusedSettings, kernels: Kernels, read: Callable[[Path], dict[str, torch.Tensor]]
) -> FusedModel:
    from safetensors import SafetensorError

    from ultimate_embedder.models.fused.model import FusedModel
    from ultimate_embedder.models.fused.tokenizer import FileTokenizer
    from ultimate_embedder.models.fused.transformer import FusedTransformer, Weights

    modules = read_modules(folder)
    path = (folder / modules[0].path if modules else folder) / "model.safetensors"
    if not path.is_file():
        raise NotFusibleError(f"it has no {path.name}")
    tokenizer = FileTokenizer(folder / "tokenizer.json", settings.pad_token_id, settings.max_seq_length)
    try:
        tensors = read(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    return FusedModel(FusedTransformer(Weights(tensors), settings, kernels), tokenizer, settings)


def find_fastest_kernels() -> Kernels:
    """Which are the fastest here: some tenths of a second, and a few seconds where they are compiled."""
    from ultimate_embedder.models.fused.fastest import fastest_kernels

    return fastest_kernels()


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def _shapes(path: Path) -> dict[str, torch.Tensor]:
    import torch
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return {name: torch.empty(file.get_slice(name).get_shape(), device="meta") for name in file.keys()}  # noqa: SIM118 - it is no mapping
