"""Find what is in an output: search, fusion of scores, reranking, query encoding; compare what two outputs find."""

from typing import TYPE_CHECKING, Any

from ultimate_embedder.find.hits import Hit, Hits, Reranked, UsedLeg
from ultimate_embedder.find.options import (
    SEARCH_OUTPUT,
    SearchConfig,
    SearchPlace,
    SearchRequest,
    check_question,
    make_search_config,
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

if TYPE_CHECKING:
    from ultimate_embedder.find.compare import (
        CosineSpread,
        NeighbourExample,
        NeighbourOverlap,
        ShownText,
        Side,
        TextCounts,
        VectorPair,
        WorstCosine,
        compare_sides,
        open_side,
    )
    from ultimate_embedder.find.query import (
        QueryEncoder,
        QueryModels,
        encode_texts,
        open_query_encoder,
        resolve_same_model,
    )
    from ultimate_embedder.find.recorded import RecordedModel, RecordedVectors, read_recorded, summary_fusion
    from ultimate_embedder.find.rerank import reorder
    from ultimate_embedder.find.search import Searcher

__all__ = [
    "SCORE_FUSIONS",
    "SCORE_FUSION_METHODS",
    "SEARCH_OUTPUT",
    "CosineSpread",
    "Hit",
    "Hits",
    "Leg",
    "NeighbourExample",
    "NeighbourOverlap",
    "QueryEncoder",
    "QueryModels",
    "Ranked",
    "RecordedModel",
    "RecordedVectors",
    "Reranked",
    "ScoreFusion",
    "SearchConfig",
    "SearchPlace",
    "SearchRequest",
    "Searcher",
    "ShownText",
    "Side",
    "TextCounts",
    "UsedLeg",
    "VectorPair",
    "WorstCosine",
    "check_question",
    "check_weights",
    "compare_sides",
    "encode_texts",
    "fuse_legs",
    "fuse_scores",
    "keep_top",
    "make_search_config",
    "open_query_encoder",
    "open_side",
    "read_recorded",
    "reorder",
    "resolve_same_model",
    "summary_fusion",
    "top_columns",
]

# imported on first use: --help needs the options, but neither numpy nor torch
_MODULES = {
    "CosineSpread": "compare",
    "NeighbourExample": "compare",
    "NeighbourOverlap": "compare",
    "ShownText": "compare",
    "Side": "compare",
    "TextCounts": "compare",
    "VectorPair": "compare",
    "WorstCosine": "compare",
    "compare_sides": "compare",
    "open_side": "compare",
    "QueryEncoder": "query",
    "QueryModels": "query",
    "RecordedModel": "recorded",
    "RecordedVectors": "recorded",
    "Searcher": "search",
    "encode_texts": "query",
    "open_query_encoder": "query",
    "read_recorded": "recorded",
    "reorder": "rerank",
    "resolve_same_model": "query",
    "summary_fusion": "recorded",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"ultimate_embedder.find.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
