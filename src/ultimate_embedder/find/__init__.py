"""Query a finished output."""

from ultimate_embedder.find.query import (
    QueryEncoder,
    encode_texts,
    open_query_encoder,
    resolve_same_model,
    summary_fusion,
)
from ultimate_embedder.find.score_fusion import (
    SCORE_FUSION_METHODS,
    SCORE_FUSIONS,
    Leg,
    Ranked,
    ScoreFusion,
    check_weights,
    fuse_legs,
    fuse_scores,
    keep_top,
    top_columns,
)

__all__ = [
    "SCORE_FUSIONS",
    "SCORE_FUSION_METHODS",
    "Leg",
    "QueryEncoder",
    "Ranked",
    "ScoreFusion",
    "check_weights",
    "encode_texts",
    "fuse_legs",
    "fuse_scores",
    "keep_top",
    "open_query_encoder",
    "resolve_same_model",
    "summary_fusion",
    "top_columns",
]
