"""How far two outputs agree on the texts that both have: cosines, and nearest neighbours."""

from ultimate_embedder.find.compare.agree import compare_sides
from ultimate_embedder.find.compare.result import (
    CosineSpread,
    NeighbourExample,
    NeighbourOverlap,
    ShownText,
    TextCounts,
    VectorPair,
    WorstCosine,
)
from ultimate_embedder.find.compare.side import Side, open_side

__all__ = [
    "CosineSpread",
    "NeighbourExample",
    "NeighbourOverlap",
    "ShownText",
    "Side",
    "TextCounts",
    "VectorPair",
    "WorstCosine",
    "compare_sides",
    "open_side",
]
