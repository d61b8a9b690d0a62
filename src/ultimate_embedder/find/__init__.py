"""Query a finished output, and compare what two outputs find."""

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
    encode_texts,
    open_query_encoder,
    resolve_same_model,
    summary_fusion,
)

__all__ = [
    "CosineSpread",
    "NeighbourExample",
    "NeighbourOverlap",
    "QueryEncoder",
    "ShownText",
    "Side",
    "TextCounts",
    "VectorPair",
    "WorstCosine",
    "compare_sides",
    "encode_texts",
    "open_query_encoder",
    "open_side",
    "resolve_same_model",
    "summary_fusion",
]
