"""Which models there are, where they lie, and how they encode."""

from ultimate_embedder.models.encoder import Encoder, TokenBatch, TokenizedTexts, load_encoder
from ultimate_embedder.models.registry import MODELS, find_spec, unknown_model
from ultimate_embedder.models.resolve import resolve_model

__all__ = [
    "MODELS",
    "Encoder",
    "TokenBatch",
    "TokenizedTexts",
    "find_spec",
    "load_encoder",
    "resolve_model",
    "unknown_model",
]
