"""Rankings of many queries: the rows of the best chunks of each. All are compared, in blocks and bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.find.score_fusion import SCORE_FUSION_METHODS, fuse_scores, top_columns

NO_ROW = -1


@dataclass(frozen=True)
class Ranking:
    """The best rows of each query, best first, with their scores; -1 and -inf where there are fewer."""

    rows: np.ndarray
    scores: np.ndarray
    exact: np.ndarray | None = None
    """Scores of the same rows by vectors that are not quantized."""


class TieBreak:
    """An order of rows for equal scores that says nothing of relevance, as the order of a file may: a random one."""

    def __init__(self, rows: int, seed: int) -> None:
        self.place = np.random.default_rng(seed).permutation(rows).astype(np.int32)
        self.row = np.argsort(self.place).astype(np.int32)

    def places(self, rows: np.ndarray) -> np.ndarray:
        """The place of each row; after all others for -1."""
        return np.where(rows >= 0, self.place[rows], len(self.place)).astype(np.int32)


class TopRows:
    """Keeps the best rows of each query while blocks of scores come in."""

    def __init__(self, queries: int, depth: int, ties: TieBreak, *, with_exact: bool = False) -> None:
        self._depth = depth
        self._ties = ties
        self._rows = np.full((queries, 0), NO_ROW, np.int32)
        self._scores = np.empty((queries, 0), np.float32)
        self._exact = np.empty((queries, 0), np.float32) if with_exact else None

    def add(self, first_row: int, scores: np.ndarray, exact: np.ndarray | None = None) -> None:
        """Add the scores of the next rows: queries x rows."""
        rows = np.broadcast_to(np.arange(first_row, first_row + scores.shape[1], dtype=np.int32), scores.shape)
        self._rows = np.concatenate([self._rows, rows], axis=1)
        self._scores = np.concatenate([self._scores, scores], axis=1)
        if self._exact is not None and exact is not None:
            self._exact = np.concatenate([self._exact, exact], axis=1)
        if self._rows.shape[1] > self._depth:
            self._keep(np.argpartition(-self._scores, self._depth - 1, axis=1)[:, : self._depth])

    def ranking(self) -> Ranking:
        """What was kept, best first."""
        self._keep(np.lexsort((self._ties.places(self._rows), -self._scores), axis=1))
        self._rows = np.where(np.isneginf(self._scores), NO_ROW, self._rows)
        return Ranking(self._rows, self._scores, self._exact)

    def _keep(self, chosen: np.ndarray) -> None:
        self._rows = np.take_along_axis(self._rows, chosen, axis=1)
        self._scores = np.take_along_axis(self._scores, chosen, axis=1)
        if self._exact is not None:
            self._exact = np.take_along_axis(self._exact, chosen, axis=1)


def rescored(ranking: Ranking, candidates: int, scores: np.ndarray | None = None) -> Ranking:
    """The first `candidates` rows in the order of other scores (the exact ones), then the rest as it was."""
    new = ranking.exact if scores is None else scores
    if new is None:
        raise ValueError("there are no other scores")
    width = min(candidates, ranking.rows.shape[1])
    head = np.where(ranking.rows[:, :width] >= 0, new[:, :width], -np.inf)
    order = np.argsort(-head, axis=1, kind="stable")
    rows = np.concatenate([np.take_along_axis(ranking.rows[:, :width], order, axis=1), ranking.rows[:, width:]], axis=1)
    # scores of two kinds cannot be compared: places stand for them
    places = np.broadcast_to(-np.arange(rows.shape[1], dtype=np.float32), rows.shape)
    return Ranking(rows, np.where(rows >= 0, places, -np.inf))


@dataclass(frozen=True)
class Candidates:
    """The rows that some leg has found for each query, and what every leg says about all of them."""

    rows: np.ndarray
    """Queries x candidates, in the order of ties; -1 where there are fewer."""
    found: Mapping[str, np.ndarray]
    """By leg: whether a candidate is among its best."""
    scores: Mapping[str, np.ndarray]
    """By leg: its score of each candidate."""

    def fuse(self, method: str, weights: Mapping[str, float]) -> Ranking:
        """Fuse the scores of some legs, as search does: over what these legs have found."""
        pool = np.logical_or.reduce([self.found[name] for name in weights])
        every = SCORE_FUSION_METHODS[method].scores_all
        held = {name: pool if every else self.found[name] for name in weights}
        tables = [np.where(held[name], self.scores[name], np.nan) for name in weights]
        fused = fuse_scores(method, tables, list(weights.values()))
        order = top_columns(fused, fused.shape[1])
        scores = np.take_along_axis(fused, order, axis=1)
        rows = np.where(np.isfinite(scores), np.take_along_axis(self.rows, order, axis=1), NO_ROW)
        return Ranking(rows.astype(np.int32), scores)

    def of(self, queries: np.ndarray) -> Candidates:
        """Those of some queries."""
        found = {name: each[queries] for name, each in self.found.items()}
        return Candidates(self.rows[queries], found, {name: each[queries] for name, each in self.scores.items()})


def find_candidates(
    legs: Mapping[str, Ranking], depth: int, ties: TieBreak
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The union of the first `depth` rows of each leg, and which of them each leg has: rows of `Candidates`."""
    places = {name: ties.places(leg.rows[:, :depth]) for name, leg in legs.items()}
    columns = _all_places(list(places.values()), len(ties.place))
    found = {name: np.zeros(columns.shape, bool) for name in legs}
    for name, mine in places.items():
        for marks, wanted, at in zip(found[name], columns, mine, strict=True):
            marks[np.searchsorted(wanted, at[at < len(ties.place)])] = True
    known = columns < len(ties.place)
    return np.where(known, ties.row[np.where(known, columns, 0)], NO_ROW), found


def _all_places(places: Sequence[np.ndarray], end: int) -> np.ndarray:
    """The places that some leg has, each once, in order; `end` fills the rest."""
    every = np.sort(np.concatenate(places, axis=1), axis=1)
    again = np.zeros(every.shape, bool)
    again[:, 1:] = every[:, 1:] == every[:, :-1]
    every = np.sort(np.where(again, end, every), axis=1)
    used = int((every < end).sum(axis=1).max(initial=1))
    return every[:, : max(1, used)]


def as_documents(rows: np.ndarray, document: np.ndarray | None) -> np.ndarray:
    """A ranking of rows as one of documents, each where its best chunk is; None: every chunk is a document."""
    if document is None:
        return rows[rows >= 0]
    found = document[rows[rows >= 0]]
    _, first = np.unique(found, return_index=True)
    return np.asarray(found[np.sort(first)])
