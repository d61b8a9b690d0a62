"""One walk over the common texts, in blocks: cosines of all of them, and neighbours of a sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.find.compare.legs import Leg
from ultimate_embedder.find.compare.nearest import Nearest
from ultimate_embedder.find.compare.pairing import LegPair
from ultimate_embedder.models import row_cosines
from ultimate_embedder.vectors import shorten

BLOCK_BYTES = 32 << 20
MOST_BLOCK_ROWS = 8192


@dataclass(frozen=True)
class Measured:
    """What was measured of a pair; rows are those of `keys`."""

    keys: np.ndarray
    """Texts that have both vectors."""
    cosines: np.ndarray | None
    """NaN where a vector is not finite or has no length."""
    equal: int
    unusable: int
    sample: np.ndarray
    """Rows whose neighbours were looked for."""
    nearest_a: np.ndarray
    nearest_b: np.ndarray


def measure(pair: LegPair, keys: np.ndarray, sample: int, neighbours: int, seed: int) -> Measured:
    """Compare the vectors of `keys`; memory is bounded by blocks, and 40 bytes per text."""
    keys = keys[pair.a.holds(keys) & pair.b.holds(keys)]
    legs = (pair.a, pair.b)
    rows, queries = _queries(legs, keys, _sampled(len(keys), sample, seed))
    count = min(neighbours, max(0, len(keys) - 1)) if len(rows) else 0
    sides = zip(legs, queries, strict=True)
    nearest = [Nearest(each, rows, len(keys), count, leg.weights) for leg, each in sides] if count else []
    cosines = np.empty(len(keys) if pair.cosine_dim is not None else 0)
    unusable, equal = 0, 0
    for start, block in _blocks(keys, pair, len(rows)):
        read = [_read(leg, block) for leg in legs]
        units = [_units(each) for each in read]
        unusable += int((~_finite(units[0]) | ~_finite(units[1])).sum())
        for each, vectors in zip(nearest, units, strict=False):
            each.see(start, vectors)
        if pair.cosine_dim is not None:
            whole = [leg.read(block) if leg.parts else each[0] for leg, each in zip(legs, read, strict=True)]
            cut = [np.asarray(each, np.float32)[:, : pair.cosine_dim] for each in whole]
            cosines[start : start + len(block)] = _cosines(*cut)
            equal += int((cut[0] == cut[1]).all(axis=1).sum())
    found = [
        each.rows((start, _units(_read(leg, block))) for start, block in _blocks(keys, pair, len(rows)))
        for leg, each in zip(legs, nearest, strict=False)
    ] or [np.empty((0, 0), np.int64)] * 2
    return Measured(
        keys, cosines if pair.cosine_dim is not None else None, equal, unusable, rows if count else rows[:0], *found
    )


def _queries(legs: Sequence[Leg], keys: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, list[list[np.ndarray]]]:
    """The rows that have usable vectors in all legs, and these vectors."""
    units = [_units(_read(leg, keys[rows])) for leg in legs]
    usable = np.logical_and.reduce([_finite(each) for each in units])
    return rows[usable], [[part[usable] for part in each] for each in units]


def _blocks(keys: np.ndarray, pair: LegPair, sample: int) -> Iterator[tuple[int, np.ndarray]]:
    row_bytes = 4 * max(pair.a.dim + pair.b.dim, sample, 1)
    rows = max(64, min(MOST_BLOCK_ROWS, BLOCK_BYTES // row_bytes))
    yield from ((start, keys[start : start + rows]) for start in range(0, len(keys), rows))


def _sampled(count: int, sample: int, seed: int) -> np.ndarray:
    chosen = np.random.default_rng(seed).permutation(count)[:sample]
    return np.asarray(np.sort(chosen), np.int64)


def _read(leg: Leg, keys: np.ndarray) -> list[np.ndarray]:
    """The vectors of texts that are searched: one, or one of each model."""
    return [np.asarray(part.read(keys), np.float32) for part in leg.searched]


def _units(vectors: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [shorten(each, None) for each in vectors]


def _finite(units: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(np.logical_and.reduce([np.isfinite(each).all(axis=1) for each in units]))


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """In float64: cosines of equal models are nearer to 1 than float32 can add up."""
    with np.errstate(all="ignore"):
        found = row_cosines(a.astype(np.float64), b.astype(np.float64))
    return np.asarray(np.clip(found, -1.0, 1.0))
