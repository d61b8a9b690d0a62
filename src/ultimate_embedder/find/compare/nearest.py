"""What search finds for some texts among many, which are shown block by block: exact, the nearest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ultimate_embedder.find.candidates import NO_ROW, Candidates, TieBreak, TopRows, find_candidates
from ultimate_embedder.find.options import CANDIDATES, DEFAULT_FUSION

SEED = 0  # of the order of equal scores: the same in both outputs


class Nearest:
    """The `count` nearest rows of each query, of `total` rows; a query is not its own neighbour.

    By cosine; of several vectors per text, as search fuses their cosines by default.
    """

    def __init__(
        self, queries: Sequence[np.ndarray], own_rows: np.ndarray, total: int, count: int, weights: Sequence[float]
    ) -> None:
        """`queries` and `weights` are those of each vector."""
        self._queries = queries
        self._own_rows = own_rows
        self._count = count
        self._weights = {str(number): weight for number, weight in enumerate(weights)}
        self._ties = TieBreak(total, SEED)
        self._depth = count if len(queries) == 1 else max(CANDIDATES, count)
        self._tops = [TopRows(len(own_rows), self._depth, self._ties) for _ in queries]

    def see(self, start: int, blocks: Sequence[np.ndarray]) -> None:
        """Take unit vectors of the rows from `start`; a row that is not finite is nobody's neighbour."""
        unusable = np.logical_or.reduce([~np.isfinite(block).all(axis=1) for block in blocks])
        inside = np.flatnonzero((self._own_rows >= start) & (self._own_rows < start + len(unusable)))
        for queries, block, top in zip(self._queries, blocks, self._tops, strict=True):
            scores = _cosines(queries, block)
            scores[:, unusable] = -np.inf
            scores[inside, self._own_rows[inside] - start] = -np.inf
            top.add(start, scores)

    def rows(self, again: Iterable[tuple[int, Sequence[np.ndarray]]]) -> np.ndarray:
        """For each query its neighbours, the nearest first; -1 where there are no more.

        `again` has the blocks once more, from which candidates that only some vectors have found are scored by all.
        """
        rankings = {name: top.ranking() for name, top in zip(self._weights, self._tops, strict=True)}
        if len(rankings) == 1:
            return _wide(rankings["0"].rows, self._count)
        rows, found = find_candidates(rankings, self._depth, self._ties)
        scores = {name: np.zeros(rows.shape, np.float32) for name in rankings}
        for start, blocks in again:
            query, column = np.nonzero((rows != NO_ROW) & (rows >= start) & (rows < start + len(blocks[0])))
            for queries, block, mine in zip(self._queries, blocks, scores.values(), strict=True):
                mine[query, column] = _cosines(queries, block)[query, rows[query, column] - start]
        return _wide(Candidates(rows, found, scores).fuse(DEFAULT_FUSION, self._weights).rows, self._count)


def _cosines(queries: np.ndarray, block: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.asarray(queries @ block.T)


def _wide(rows: np.ndarray, count: int) -> np.ndarray:
    """The first `count` columns, also where there are fewer."""
    missing = max(0, count - rows.shape[1])
    return np.pad(rows, ((0, 0), (0, missing)), constant_values=NO_ROW)[:, :count].astype(np.int64)
