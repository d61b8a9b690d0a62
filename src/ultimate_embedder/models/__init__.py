"""Which models there are, where they lie, and how they encode."""

from ultimate_embedder.models.encoder import Encoder, TokenBatch, TokenizedTexts, check_dim, load_encoder
from ultimate_embedder.models.layers import (
    NotApplicableError,
    chunked_feed_forward,
    repeated_layers,
    streamed_layers,
)
from ultimate_embedder.models.manifest import output_manifest
from ultimate_embedder.models.peak import predict_peak_bytes
from ultimate_embedder.models.registry import MODELS, find_spec, unknown_model
from ultimate_embedder.models.resolve import cached_snapshot, pull_model, resolve_model, whereabouts
from ultimate_embedder.models.verify import verify_snapshot

__all__ = [
    "MODELS",
    "Encoder",
    "NotApplicableError",
    "TokenBatch",
    "TokenizedTexts",
    "cached_snapshot",
    "check_dim",
    "chunked_feed_forward",
    "find_spec",
    "load_encoder",
    "output_manifest",
    "predict_peak_bytes",
    "pull_model",
    "repeated_layers",
    "resolve_model",
    "streamed_layers",
    "unknown_model",
    "verify_snapshot",
    "whereabouts",
]
