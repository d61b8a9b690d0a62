"""Load a fused model. Apart from the others, so that torch is imported when a model is loaded, not before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ultimate_embedder.errors import ModelError
from ultimate_embedder.models.config_files import read_modules
from ultimate_embedder.models.fused.settings import FusedSettings, NotFusibleError

if TYPE_CHECKING:
    import torch

    from ultimate_embedder.models.fused.model import FusedModel


def load_fused(folder: Path, settings: FusedSettings, products: str) -> FusedModel:
    """Load a model from its files; raises `NotFusibleError` if its weights are not those of such a model."""
    from ultimate_embedder.models.fused.model import FusedModel
    from ultimate_embedder.models.fused.tokenizer import FileTokenizer
    from ultimate_embedder.models.fused.transformer import FusedTransformer, Weights

    modules = read_modules(folder)
    place = folder / modules[0].path if modules else folder
    tokenizer = FileTokenizer(folder / "tokenizer.json", settings.pad_token_id, settings.max_seq_length)
    transformer = FusedTransformer(Weights(_tensors(place / "model.safetensors")), settings, products)
    return FusedModel(transformer, tokenizer, settings)


def find_faster_products() -> str:
    """Which of `PRODUCTS` is faster here: some tens of milliseconds."""
    from ultimate_embedder.models.fused.products import faster_products

    return faster_products()


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise NotFusibleError(f"it has no {path.name}")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
