"""Which vectors of A are compared with which of B, and whether their cosines mean anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ultimate_embedder.find.compare.legs import Leg

OTHER_MODELS = "made by different models: a cosine between their vectors has no meaning, neighbours do"
OTHER_FUSION = "combined in different ways: a cosine between such vectors has no meaning, neighbours do"
OTHER_DIMS = "of different dimensions"


@dataclass(frozen=True)
class LegPair:
    """Two legs to compare."""

    a: Leg
    b: Leg
    whole: bool
    cosine_dim: int | None
    """The first dimensions, of which cosines are computed; None if these have no meaning."""
    why_no_cosines: str = ""
    notes: tuple[str, ...] = ()


def pair_legs(a: Sequence[Leg], b: Sequence[Leg], whole_a: Leg | None, whole_b: Leg | None) -> list[LegPair]:
    """Models that both have, by name, and all models together, unless that is the same once more."""
    of_b = {leg.name: leg for leg in b}
    pairs = [_pair(leg, of_b[leg.name], whole=False) for leg in a if leg.name in of_b]
    if whole_a is None or whole_b is None:
        return pairs
    compared = any(pair.a is whole_a and pair.b is whole_b for pair in pairs)
    return pairs if compared else [*pairs, _pair(whole_a, whole_b, whole=True)]


def _pair(a: Leg, b: Leg, *, whole: bool) -> LegPair:
    names = [[maker.model for maker in leg.makers] for leg in (a, b)]
    digests = [[maker.digest for maker in leg.makers] for leg in (a, b)]
    if names[0] != names[1]:
        return LegPair(a, b, whole, None, OTHER_MODELS)
    if a.method != b.method:
        return LegPair(a, b, whole, None, OTHER_FUSION)
    same_files = digests[0] == digests[1] and all(digests[0])
    notes = () if same_files else ("the files of the model differ, or are not known: it may be another model",)
    if a.dim == b.dim:
        return LegPair(a, b, whole, a.dim, notes=notes)
    if a.method or not same_files:
        return LegPair(a, b, whole, None, OTHER_DIMS, notes)
    shorter = min(a.dim, b.dim)
    return LegPair(a, b, whole, shorter, notes=(f"cosines are of the first {shorter:,} dimensions, which both have",))
