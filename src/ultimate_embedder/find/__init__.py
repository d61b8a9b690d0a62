"""Query a finished output."""

from ultimate_embedder.find.query import (
    QueryEncoder,
    encode_texts,
    open_query_encoder,
    resolve_same_model,
    summary_fusion,
)

__all__ = ["QueryEncoder", "encode_texts", "open_query_encoder", "resolve_same_model", "summary_fusion"]
