"""Rank the points of a place by one leg, or by several whose scores are fused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ultimate_embedder.find.filters import Condition
from ultimate_embedder.find.places import Found, Place, QueryLeg
from ultimate_embedder.find.score_fusion import SCORE_FUSION_METHODS, Leg, Ranked, fuse_legs

ENGINE_DECIMALS = 7  # of scores that the engine has fused, in float32


@dataclass(frozen=True)
class Ranking:
    """Points in their order, and how it was made."""

    ranked: list[Ranked]
    fused_by: str | None = None
    candidates: int | None = None


def rank(
    place: Place, legs: Sequence[QueryLeg], method: str, top: int, depth: int, conditions: Sequence[Condition]
) -> Ranking:
    """The `top` points. Several legs are fused over the union of the `depth` best points of each.

    Qdrant fuses where it gives the same result: RRF and DBSF with equal weights.
    """
    if len(legs) == 1:
        found = _by_score(place.nearest(legs[0], top, conditions))
        return Ranking([Ranked(key, score, (score,)) for key, score in found])
    if len({leg.weight for leg in legs}) == 1:
        fused = place.fused(method, legs, depth, conditions)
        if fused is not None:
            best = _by_score(fused, ENGINE_DECIMALS)[:top]
            return Ranking(_with_leg_scores(place, legs, best), "engine", len(fused))
    found_by_leg = [_by_score(place.nearest(leg, depth, conditions)) for leg in legs]
    keys = sorted({each.key for found in found_by_leg for each in found})
    if SCORE_FUSION_METHODS[method].scores_all:
        scored = [_scores_of_all(place, leg, found, keys) for leg, found in zip(legs, found_by_leg, strict=True)]
    else:
        scored = [dict(found) for found in found_by_leg]
    fusing = [Leg(list(each), list(each.values()), leg.weight) for leg, each in zip(legs, scored, strict=True)]
    ranked = fuse_legs(method, fusing, top)
    best = [Found(each.id, each.score) for each in ranked]
    return Ranking(_with_leg_scores(place, legs, best), "program", len(keys))


def _by_score(found: Sequence[Found], decimals: int | None = None) -> list[Found]:
    """Best first; of equal scores the lower key, as engines have no order for these."""

    def score(each: Found) -> float:
        return each.score if decimals is None else round(each.score, decimals)

    return sorted(found, key=lambda each: (-score(each), each.key))


def _scores_of_all(place: Place, leg: QueryLeg, found: Sequence[Found], keys: Sequence[str]) -> dict[str, float]:
    """The leg's scores of all candidates, also of those that only other legs have found."""
    known = dict(found)
    missing = [key for key in keys if key not in known]
    return known | leg.defaults(missing) | place.scores(leg, missing)


def _with_leg_scores(place: Place, legs: Sequence[QueryLeg], best: Sequence[Found]) -> list[Ranked]:
    keys = [each.key for each in best]
    by_leg = [leg.defaults(keys) | place.scores(leg, keys) for leg in legs]
    return [Ranked(each.key, each.score, tuple(scores.get(each.key) for scores in by_leg)) for each in best]
