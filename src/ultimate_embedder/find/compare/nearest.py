"""Exact nearest neighbours of some vectors among many, which are shown block by block."""

from __future__ import annotations

import numpy as np


class Nearest:
    """The `count` nearest rows of each query by cosine; a query is not its own neighbour."""

    def __init__(self, queries: np.ndarray, own_rows: np.ndarray, count: int) -> None:
        self._queries = queries
        self._own_rows = own_rows
        self._scores = np.full((len(queries), count), -np.inf, np.float32)
        self._rows = np.full((len(queries), count), -1, np.int64)

    def see(self, start: int, block: np.ndarray) -> None:
        """Take unit vectors of the rows from `start`; a row that is not finite is nobody's neighbour."""
        with np.errstate(invalid="ignore"):
            scores = self._queries @ block.T
        scores[:, ~np.isfinite(block).all(axis=1)] = -np.inf
        inside = np.flatnonzero((self._own_rows >= start) & (self._own_rows < start + len(block)))
        scores[inside, self._own_rows[inside] - start] = -np.inf
        count = self._scores.shape[1]
        best = _largest(scores, count)
        scores = np.concatenate([self._scores, np.take_along_axis(scores, best, 1)], axis=1)
        rows = np.concatenate([self._rows, best + start], axis=1)
        kept = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        self._scores, self._rows = np.take_along_axis(scores, kept, 1), np.take_along_axis(rows, kept, 1)

    @property
    def rows(self) -> np.ndarray:
        """For each query its neighbours, the nearest first; -1 where there are no more."""
        return np.where(np.isfinite(self._scores), self._rows, -1)


def _largest(scores: np.ndarray, count: int) -> np.ndarray:
    if scores.shape[1] <= count:
        return np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    return np.argpartition(-scores, count - 1, axis=1)[:, :count]
