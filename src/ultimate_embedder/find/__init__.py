"""Query a finished output."""

from ultimate_embedder.find.query import (
    QueryEncoder,
    encode_texts,
    open_query_encoder,
    resolve_same_model,
    summary_fusion,
)
from ultimate_embedder.find.sparse import SparseQueryEncoder, open_sparse_query, query_sparse, read_sparse

__all__ = [
    "QueryEncoder",
    "SparseQueryEncoder",
    "encode_texts",
    "open_query_encoder",
    "open_sparse_query",
    "query_sparse",
    "read_sparse",
    "resolve_same_model",
    "summary_fusion",
]
