"""Fusion of scores: several legs (models, sparse vectors) that scored the same documents become one ranking.

zscore   each leg's scores, standardised per query over its candidates (mean 0, deviation 1), weighted and summed
rrf      reciprocal rank fusion as in its paper: the weighted sum of 1 / (60 + rank), ranks from 1
dbsf     distribution-based score fusion as in Qdrant: mean - 3 deviations becomes 0, mean + 3 deviations becomes 1;
         weighted and summed

A weight multiplies what a leg contributes: 0.5 is half as much. (In Qdrant's weighted RRF it divides ranks instead.)
With `fuse_scores` all queries and all documents can be fused in blocks; `fuse_legs` is for the candidates of one query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ultimate_embedder.errors import UsageError

if TYPE_CHECKING:  # imported where it is used: the command line needs only the names of the methods
    import numpy as np

RRF_K = 60
DEVIATIONS = 3.0
NOISE = 1e-6  # scores that differ less than this, relative to their size, are equal: more would be rounding of float32
LARGEST = 1e38  # about that of float32; a score beyond it is none
DECIMALS = 12  # of fused scores that are compared: sums in another order are not other scores


@dataclass(frozen=True)
class ScoreFusion:
    """A way to make the scores of legs comparable, so that they can be weighted and summed."""

    about: str
    contributions: Callable[[np.ndarray], np.ndarray]
    """From the scores of one leg (queries x documents, NaN: not a candidate) to what it adds for each document."""
    scores_all: bool = False
    """Whether a leg's scores of all candidates are used, also of those that only other legs have found."""


def _zscores(scores: np.ndarray) -> np.ndarray:
    """Standardised scores; what is no candidate of the leg counts as its lowest."""
    import numpy as np

    with _quiet():
        mean, deviation = _moments(scores, ddof=0)
        standard = np.where(deviation > 0, (scores - mean) / np.where(deviation > 0, deviation, 1.0), 0.0)
        lowest = np.where(np.isnan(scores), np.inf, standard).min(axis=1, keepdims=True, initial=np.inf)
    lowest = np.where(np.isfinite(lowest), lowest, 0.0)
    return np.where(np.isnan(scores), lowest, standard)


def _reciprocal_ranks(scores: np.ndarray) -> np.ndarray:
    """1 / (k + rank); what is no candidate of the leg adds nothing. Of equal scores the first column ranks first."""
    import numpy as np

    order = np.argsort(-scores, axis=1, kind="stable")  # NaN is sorted to the end
    ranks = np.empty(order.shape, np.float64)
    np.put_along_axis(ranks, order, np.arange(1, scores.shape[1] + 1, dtype=np.float64)[None, :], axis=1)
    return np.where(np.isnan(scores), 0.0, 1.0 / (RRF_K + ranks))


def _in_distribution(scores: np.ndarray) -> np.ndarray:
    """The place between mean - 3 and mean + 3 deviations, not clipped; 0.5 if there is no deviation."""
    import numpy as np

    with _quiet():
        mean, deviation = _moments(scores, ddof=1)
        place = (scores - mean) / np.where(deviation > 0, 2 * DEVIATIONS * deviation, 1.0) + 0.5
        return np.where(np.isnan(scores), 0.0, np.where(deviation > 0, place, 0.5))


SCORE_FUSION_METHODS: dict[str, ScoreFusion] = {
    "zscore": ScoreFusion("sum of standardised scores", _zscores, scores_all=True),
    "rrf": ScoreFusion("reciprocal rank fusion, k = 60", _reciprocal_ranks),
    "dbsf": ScoreFusion("distribution-based score fusion, as in Qdrant", _in_distribution),
}
SCORE_FUSIONS: tuple[str, ...] = tuple(SCORE_FUSION_METHODS)


def fuse_scores(method: str, legs: Sequence[np.ndarray], weights: Sequence[float] | None = None) -> np.ndarray:
    """Fuse the scores of legs: arrays of queries x documents, all of one shape.

    NaN (or an infinite score) says that a document is no candidate of a leg for that query. The result has -inf where a
    document is a candidate of no leg, and is finite elsewhere. A leg of weight 0 has no candidates.
    """
    import numpy as np

    checked = check_weights(weights, len(legs))
    fused, seen = np.zeros(legs[0].shape), np.zeros(legs[0].shape, bool)
    for leg, weight in zip(legs, checked, strict=True):
        if weight > 0:
            scores = np.asarray(leg, np.float64)
            scores = np.where(np.abs(scores) <= LARGEST, scores, np.nan)
            fused += weight * SCORE_FUSION_METHODS[method].contributions(scores)
            seen |= ~np.isnan(scores)
    return np.where(seen, fused, -np.inf)


def top_columns(scores: np.ndarray, count: int) -> np.ndarray:
    """For each query the columns of the highest scores, best first; of equal scores the first column is first.

    An array of queries x count (fewer if there are fewer documents). Columns whose score is -inf are last.
    """
    import numpy as np

    rounded = np.round(scores, DECIMALS)
    count = min(count, rounded.shape[1])
    if count < rounded.shape[1]:
        rounded = np.where(_is_top(rounded, count), rounded, -np.inf)
    return np.argsort(-rounded, axis=1, kind="stable")[:, :count]


def keep_top(scores: np.ndarray, count: int) -> np.ndarray:
    """Only each query's `count` highest scores; the others become NaN, which is no candidate."""
    import numpy as np

    known = np.where(np.isfinite(scores), scores, -np.inf)
    if count >= known.shape[1]:
        return np.where(np.isfinite(known), known, np.nan)
    return np.where(_is_top(known, count) & np.isfinite(known), known, np.nan)


@dataclass(frozen=True)
class Leg:
    """The candidates of one leg for one query: ids, each once, and their scores."""

    ids: Sequence[str]
    scores: Sequence[float] | np.ndarray
    weight: float = 1.0


@dataclass(frozen=True)
class Ranked:
    """A document in a fused ranking; `leg_scores` are those that the legs gave, None where it was no candidate."""

    id: str
    score: float
    leg_scores: tuple[float | None, ...]


def fuse_legs(method: str, legs: Sequence[Leg], top: int | None = None) -> list[Ranked]:
    """Fuse the candidates of one query, best first; of equal scores the lower id is first."""
    import numpy as np

    ids = sorted({each for leg in legs for each in leg.ids})
    if not ids:
        return []
    columns = {each: column for column, each in enumerate(ids)}
    table = np.full((len(legs), len(ids)), np.nan)
    for row, leg in zip(table, legs, strict=True):
        row[[columns[each] for each in leg.ids]] = leg.scores
    fused = fuse_scores(method, [row[None, :] for row in table], [leg.weight for leg in legs])
    best = top_columns(fused, len(ids) if top is None else top)[0]
    return [
        Ranked(ids[column], float(fused[0, column]), tuple(map(_known, table[:, column])))
        for column in best
        if np.isfinite(fused[0, column])
    ]


def check_weights(weights: Sequence[float] | None, legs: int) -> tuple[float, ...]:
    """One weight per leg, 1 if none are given; raises `UsageError` for what cannot be a weight."""
    if weights is None:
        return (1.0,) * legs
    checked = tuple(map(float, weights))
    if len(checked) != legs:
        raise UsageError(f"there are {len(checked)} weights for {legs} legs. Give one weight for each.")
    if any(not math.isfinite(weight) or weight < 0 for weight in checked) or not any(checked):
        raise UsageError(f"weights must be 0 or more, and one of them more than 0; got {list(checked)}.")
    return checked


def _moments(scores: np.ndarray, ddof: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each query's candidates; the deviation is 0 where they are equal, or one."""
    import numpy as np

    held = ~np.isnan(scores)
    count = held.sum(axis=1, keepdims=True)
    mean = np.where(held, scores, 0.0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
    squares = np.where(held, (scores - mean) ** 2, 0.0).sum(axis=1, keepdims=True)
    deviation = np.sqrt(squares / np.maximum(count - ddof, 1))
    size = np.where(held, np.abs(scores), 0.0).max(axis=1, keepdims=True, initial=0.0)
    return mean, np.where(deviation > NOISE * size, deviation, 0.0)


def _is_top(scores: np.ndarray, count: int) -> np.ndarray:
    """Which scores are among each query's highest; of equal ones the first columns."""
    import numpy as np

    least = -np.partition(-scores, count - 1, axis=1)[:, count - 1 : count]
    above, equal = scores > least, scores == least
    left = count - above.sum(axis=1, keepdims=True)
    return np.asarray(above | (equal & (np.cumsum(equal, axis=1) <= left)))


def _known(score: float) -> float | None:
    return float(score) if math.isfinite(score) else None


def _quiet() -> np.errstate:
    import numpy as np

    return np.errstate(invalid="ignore", over="ignore")
