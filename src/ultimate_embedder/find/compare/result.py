"""What a comparison of vectors finds, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ShownText:
    """A text as an example: its first chunk and its beginning; empty where no export has the texts."""

    chunk_id: str
    text: str


@dataclass(frozen=True)
class TextCounts:
    """Distinct texts with a vector."""

    a: int
    b: int
    common: int
    changed_ids: int | None
    """Chunk ids that both have, with different texts; None if an output has no ids."""


@dataclass(frozen=True)
class WorstCosine:
    """A text whose two vectors are far apart."""

    cosine: float
    text: ShownText


@dataclass(frozen=True)
class CosineSpread:
    """Cosines of the two vectors of each common text."""

    texts: int
    mean: float
    worst: float
    percentiles: dict[str, float]
    """`p1`: 1 % of the texts have a lower cosine."""
    equal: int
    """Texts whose two vectors are equal in every bit."""
    low: float
    """Where the first bin begins; the last one ends at 1."""
    bins: tuple[int, ...]
    examples: tuple[WorstCosine, ...]


@dataclass(frozen=True)
class NeighbourExample:
    """A text that finds other texts in A than in B."""

    shared: int
    text: ShownText
    only_a: tuple[ShownText, ...]
    """The nearest of those that only A has among its neighbours."""
    only_b: tuple[ShownText, ...]


@dataclass(frozen=True)
class NeighbourOverlap:
    """Nearest neighbours of a sample of the common texts, among all common texts, in A and in B."""

    neighbours: int
    sample: int
    mean: float
    """Share of the neighbours in A that are neighbours in B as well."""
    same_nearest: float
    """Share of the sample whose nearest neighbour is the same."""
    shared: tuple[int, ...]
    """How many texts of the sample share 0, 1, ... neighbours."""
    examples: tuple[NeighbourExample, ...]


@dataclass(frozen=True)
class VectorPair:
    """Vectors of A and of B that were compared: of one model, or of all models as they are searched."""

    a: str
    b: str
    whole: bool
    """Whether these are the vectors as they are searched: all models of an output together."""
    dim_a: int
    dim_b: int
    texts: int
    """Common texts that have both vectors."""
    unusable: int
    """Common texts that were left out, as a vector is not finite or has no length."""
    cosines: CosineSpread | None
    why_no_cosines: str
    neighbours: NeighbourOverlap | None
    notes: tuple[str, ...]
