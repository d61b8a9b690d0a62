"""Find what is in an output: search, fusion of scores, reranking, query encoding; measure and compare what is found."""

from typing import TYPE_CHECKING

from ultimate_embedder.find.evaluate.options import EVALUATION_OUTPUT, EvaluateConfig, make_evaluate_config
from ultimate_embedder.find.hits import Hit, Hits, Reranked, UsedLeg
from ultimate_embedder.find.options import (
    FUSED,
    HYBRID,
    SEARCH_OUTPUT,
    SPARSE,
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
from ultimate_embedder.late import late_names

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
    from ultimate_embedder.find.evaluate.measures import MEASURES
    from ultimate_embedder.find.evaluate.result import Evaluation, EvaluationRow, read_evaluations
    from ultimate_embedder.find.evaluate.run import evaluate_output
    from ultimate_embedder.find.evaluate.sources import journal_identity
    from ultimate_embedder.find.query import QueryEncoder, QueryModels, open_query_encoder
    from ultimate_embedder.find.recorded import RecordedModel, RecordedVectors, read_recorded, summary_fusion
    from ultimate_embedder.find.rerank import reorder
    from ultimate_embedder.find.same_model import encode_texts, resolve_same_model
    from ultimate_embedder.find.search import Searcher
    from ultimate_embedder.find.sparse import SparseQueryEncoder, open_sparse_query, query_sparse, read_sparse

__all__ = [
    "EVALUATION_OUTPUT",
    "FUSED",
    "HYBRID",
    "MEASURES",
    "SCORE_FUSIONS",
    "SCORE_FUSION_METHODS",
    "SEARCH_OUTPUT",
    "SPARSE",
    "CosineSpread",
    "EvaluateConfig",
    "Evaluation",
    "EvaluationRow",
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
    "SparseQueryEncoder",
    "TextCounts",
    "UsedLeg",
    "VectorPair",
    "WorstCosine",
    "check_question",
    "check_weights",
    "compare_sides",
    "encode_texts",
    "evaluate_output",
    "fuse_legs",
    "fuse_scores",
    "journal_identity",
    "keep_top",
    "make_evaluate_config",
    "make_search_config",
    "open_query_encoder",
    "open_side",
    "open_sparse_query",
    "query_sparse",
    "read_evaluations",
    "read_recorded",
    "read_sparse",
    "reorder",
    "resolve_same_model",
    "summary_fusion",
    "top_columns",
]

# imported on first use: --help needs the options and the names of the fusion methods, but not numpy and the models
_MODULES = {
    "CosineSpread": "compare",
    "Evaluation": "evaluate.result",
    "EvaluationRow": "evaluate.result",
    "MEASURES": "evaluate.measures",
    "NeighbourExample": "compare",
    "NeighbourOverlap": "compare",
    "QueryEncoder": "query",
    "QueryModels": "query",
    "RecordedModel": "recorded",
    "RecordedVectors": "recorded",
    "Searcher": "search",
    "ShownText": "compare",
    "Side": "compare",
    "SparseQueryEncoder": "sparse",
    "TextCounts": "compare",
    "VectorPair": "compare",
    "WorstCosine": "compare",
    "compare_sides": "compare",
    "encode_texts": "same_model",
    "evaluate_output": "evaluate.run",
    "journal_identity": "evaluate.sources",
    "open_query_encoder": "query",
    "open_side": "compare",
    "open_sparse_query": "sparse",
    "query_sparse": "sparse",
    "read_evaluations": "evaluate.result",
    "read_recorded": "recorded",
    "read_sparse": "sparse",
    "reorder": "rerank",
    "resolve_same_model": "same_model",
    "summary_fusion": "recorded",
}

__getattr__ = late_names(__name__, _MODULES)
