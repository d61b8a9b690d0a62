"""One walk over the common texts, in blocks: cosines of all of them, and neighbours of a sample."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Compare the vectors of `keys`; memory is bounded by blocks, and 24 bytes per text."""
    keys = keys[pair.a.holds(keys) & pair.b.holds(keys)]
    legs = (pair.a, pair.b)
    rows = _sampled(len(keys), sample, seed)
    queries = [_unit(leg, keys[rows]) for leg in legs]
    usable = np.logical_and.reduce([np.isfinite(each).all(axis=1) for each in queries])
    rows, queries = rows[usable], [each[usable] for each in queries]
    count = min(neighbours, max(0, len(keys) - 1)) if len(rows) else 0
    nearest = [Nearest(each, rows, count) for each in queries] if count else []
    cosines = np.empty(len(keys) if pair.cosine_dim is not None else 0)
    unusable, equal = 0, 0
    for start, block in _blocks(keys, pair, len(rows)):
        read = [np.asarray(leg.read(block), np.float32) for leg in legs]
        units = [shorten(vectors, None) for vectors in read]
        unusable += int((~np.isfinite(units[0]).all(axis=1) | ~np.isfinite(units[1]).all(axis=1)).sum())
        for each, vectors in zip(nearest, units, strict=False):
            each.see(start, vectors)
        if pair.cosine_dim is not None:
            cut = [vectors[:, : pair.cosine_dim] for vectors in read]
            cosines[start : start + len(block)] = _cosines(*cut)
            equal += int((cut[0] == cut[1]).all(axis=1).sum())
    return Measured(
        keys,
        cosines if pair.cosine_dim is not None else None,
        equal,
        unusable,
        rows if count else rows[:0],
        nearest[0].rows if count else np.empty((0, 0), np.int64),
        nearest[1].rows if count else np.empty((0, 0), np.int64),
    )


def _blocks(keys: np.ndarray, pair: LegPair, sample: int) -> Iterator[tuple[int, np.ndarray]]:
    row_bytes = 4 * max(pair.a.dim + pair.b.dim, sample, 1)
    rows = max(64, min(MOST_BLOCK_ROWS, BLOCK_BYTES // row_bytes))
    yield from ((start, keys[start : start + rows]) for start in range(0, len(keys), rows))


def _sampled(count: int, sample: int, seed: int) -> np.ndarray:
    chosen = np.random.default_rng(seed).permutation(count)[:sample]
    return np.asarray(np.sort(chosen), np.int64)


def _unit(leg: Leg, keys: np.ndarray) -> np.ndarray:
    return shorten(np.asarray(leg.read(keys), np.float32), None)


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """In float64: cosines of equal models are nearer to 1 than float32 can add up."""
    with np.errstate(all="ignore"):
        found = row_cosines(a.astype(np.float64), b.astype(np.float64))
    return np.asarray(np.clip(found, -1.0, 1.0))
