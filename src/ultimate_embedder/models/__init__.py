"""Which models there are, where they lie, and how they encode."""

from ultimate_embedder.models.encoder import Encoder, TokenBatch, TokenizedTexts, load_encoder
from ultimate_embedder.models.layers import (
    NotApplicableError,
    chunked_feed_forward,
    repeated_layers,
    streamed_layers,
)
from ultimate_embedder.models.peak import predict_peak_bytes
from ultimate_embedder.models.registry import MODELS, find_spec, unknown_model
from ultimate_embedder.models.resolve import resolve_model

__all__ = [
    "MODELS",
    "Encoder",
    "NotApplicableError",
    "TokenBatch",
    "TokenizedTexts",
    "chunked_feed_forward",
    "find_spec",
    "load_encoder",
    "predict_peak_bytes",
    "repeated_layers",
    "resolve_model",
    "streamed_layers",
    "unknown_model",
]
