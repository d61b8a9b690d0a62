"""Which models there are, where they lie, and how they encode."""

from ultimate_embedder.models.backend import require_backend, use_backend
from ultimate_embedder.models.canary import row_cosines
from ultimate_embedder.models.described import check_dim, check_max_tokens, native_dim, position_limit
from ultimate_embedder.models.encoder import Encoder, load_encoder
from ultimate_embedder.models.layers import (
    NotApplicableError,
    chunked_feed_forward,
    repeated_layers,
    streamed_layers,
)
from ultimate_embedder.models.loaded import LoadedModel, TokenBatch, TokenizedTexts
from ultimate_embedder.models.manifest import output_manifest
from ultimate_embedder.models.registry import MODELS, find_spec, unknown_model
from ultimate_embedder.models.reranker import Reranker, load_reranker, resolve_reranker
from ultimate_embedder.models.resolve import cached_snapshot, pull_model, resolve_model, whereabouts
from ultimate_embedder.models.verify import verify_snapshot

__all__ = [
    "MODELS",
    "Encoder",
    "LoadedModel",
    "NotApplicableError",
    "Reranker",
    "TokenBatch",
    "TokenizedTexts",
    "cached_snapshot",
    "check_dim",
    "check_max_tokens",
    "chunked_feed_forward",
    "find_spec",
    "load_encoder",
    "load_reranker",
    "native_dim",
    "output_manifest",
    "position_limit",
    "pull_model",
    "repeated_layers",
    "require_backend",
    "resolve_model",
    "resolve_reranker",
    "row_cosines",
    "streamed_layers",
    "unknown_model",
    "use_backend",
    "verify_snapshot",
    "whereabouts",
]
