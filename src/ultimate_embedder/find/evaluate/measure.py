"""Rank all chunks for all queries in every way, and measure each ranking; a block of queries at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ultimate_embedder.events import Emit, EvaluationAdvanced, EvaluationEnded, EvaluationStarted
from ultimate_embedder.find.evaluate.measures import RANKING_DEPTH, measure_rankings, perfect_order
from ultimate_embedder.find.evaluate.ranking import Ranking, TieBreak, as_documents, rescored
from ultimate_embedder.find.evaluate.scoring import rank_all
from ultimate_embedder.find.evaluate.sources import RowVectors
from ultimate_embedder.find.evaluate.task import Task
from ultimate_embedder.find.evaluate.ways import Plan, Way

BLOCK_QUERIES = 256
MOST_DEPTH = 10_000  # chunks of a ranking, where documents have several
MOST_KEPT = 2_000  # queries whose candidates are kept, to tune weights
COMPARING = "comparing queries with all chunks"

Values = dict[str, np.ndarray]
"""By the name of a way: queries x measures."""


class SparseLeg(Protocol):
    """Sparse vectors of a collection."""

    name: str
    weight: float

    def rank(self, queries: slice, depth: int, ties: TieBreak) -> Ranking:
        """The best rows for some of the queries that it was opened with."""
        ...


@dataclass(frozen=True)
class Rerank:
    """A reranker that orders the first candidates of one way again."""

    model: str
    base: str
    depth: int
    score: Callable[[Sequence[str], np.ndarray], np.ndarray]
    """From texts of queries and rows of candidates (-1: none) to a score for each."""


@dataclass(frozen=True)
class Searched:
    """What is needed to search a collection for the queries of a task."""

    task: Task
    plan: Plan
    vectors: Mapping[str, RowVectors]
    queries: Mapping[str, np.ndarray]
    """Vectors of all queries, by model."""
    sparse: Sequence[SparseLeg]
    ties: TieBreak


@dataclass
class Measured:
    """Every way with its measures for each query."""

    ways: list[Way]
    values: Values
    heads: dict[str, list[Ranking]] = field(default_factory=dict)
    """The candidates of the legs for the first queries, if they are kept."""


def measure(
    searched: Searched, emit: Emit, *, ceiling_depth: int, rerank: Rerank | None = None, keep: int = 0
) -> Measured:
    """Measure all ways; `keep` is the number of candidates of each leg that are kept to tune weights."""
    task, plan = searched.task, searched.plan
    ways = [*plan.ways, *_ceilings(plan.ways, ceiling_depth), *_reranked(plan.ways, rerank)]
    blocks: dict[str, list[np.ndarray]] = {way.name: [] for way in ways}
    measured = Measured(ways, {})
    emit(EvaluationStarted(what=COMPARING, total=len(task.ids)))
    for part in _parts(len(task.ids)):
        legs = _rank_legs(searched, part)
        if keep and part.start < MOST_KEPT:
            for name, ranking in legs.items():
                measured.heads.setdefault(name, []).append(ranking.first(keep))
        for name, ranking in _rankings(searched, part, legs, ceiling_depth, rerank):
            blocks[name].append(_measure(ranking, task, part))
        emit(EvaluationAdvanced(what=COMPARING, queries=part.stop - part.start))
    emit(EvaluationEnded(what=COMPARING))
    measured.values = {name: np.concatenate(found) for name, found in blocks.items()}
    return measured


def _parts(queries: int) -> Iterator[slice]:
    for start in range(0, queries, BLOCK_QUERIES):
        yield slice(start, min(start + BLOCK_QUERIES, queries))


def depth_for(task: Task) -> int:
    """How many chunks a ranking must have so that it has enough documents."""
    per_document = -(-task.documents.chunks // max(1, task.documents.count))
    return min(task.documents.chunks, MOST_DEPTH, RANKING_DEPTH * per_document)


def _rank_legs(searched: Searched, part: slice) -> dict[str, Ranking]:
    depth = depth_for(searched.task)
    vectors = {name: each[part] for name, each in searched.queries.items()}
    legs = rank_all(searched.plan.scorers, searched.vectors, vectors, depth, searched.ties) if vectors else {}
    return legs | {leg.name: leg.rank(part, depth, searched.ties) for leg in searched.sparse}


def _rankings(
    searched: Searched, part: slice, legs: Mapping[str, Ranking], ceiling_depth: int, rerank: Rerank | None
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Yield the name of each way with its rankings of documents."""
    task = searched.task
    for way in searched.plan.ways:
        ranking = way.rank(legs)
        documents = [as_documents(rows, task.documents.document) for rows in ranking.rows]
        yield way.name, documents
        if _has_ceiling(way):
            first = [len(as_documents(rows[:ceiling_depth], task.documents.document)) for rows in ranking.rows]
            ordered = map(perfect_order, documents, task.relevant[part], first)
            yield ceiling_name(way, ceiling_depth), list(ordered)
        if rerank is not None and rerank.base == way.name:
            scores = rerank.score(task.texts[part], ranking.rows[:, : rerank.depth])
            again = rescored(ranking, rerank.depth, scores)
            yield reranked_name(rerank), [as_documents(rows, task.documents.document) for rows in again.rows]


def _measure(rankings: list[np.ndarray], task: Task, part: slice) -> np.ndarray:
    return measure_rankings(rankings, task.relevant[part])


def _has_ceiling(way: Way) -> bool:
    return way.kind in ("model", "fusion", "sparse", "hybrid") and " without " not in way.name


def _ceilings(ways: Sequence[Way], depth: int) -> Iterator[Way]:
    for way in ways:
        if _has_ceiling(way):
            yield Way(ceiling_name(way, depth), "ceiling", way.rank, way.models, way.bytes_per_chunk, way.name)


def ceiling_name(way: Way, depth: int) -> str:
    """The name of the best that a reranker could make of a way."""
    return f"{way.name}, best {depth} in perfect order"


def _reranked(ways: Sequence[Way], rerank: Rerank | None) -> Iterator[Way]:
    for way in ways:
        if rerank is not None and way.name == rerank.base:
            models = (*way.models, rerank.model)
            yield Way(reranked_name(rerank), "reranked", way.rank, models, way.bytes_per_chunk)


def reranked_name(rerank: Rerank) -> str:
    """The name of a way whose candidates are reranked."""
    return f"{rerank.base}, {rerank.depth} reranked by {rerank.model}"


def deciding(values: np.ndarray) -> np.ndarray:
    """The measure that decides, for each query."""
    return np.asarray(values[:, 0])
