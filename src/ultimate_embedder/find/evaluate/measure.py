"""Rank all chunks for all queries in every way, and measure each ranking; a block of queries at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.events import Emit, EvaluationAdvanced, EvaluationEnded, EvaluationStarted
from ultimate_embedder.find.candidates import Candidates, TieBreak, as_documents, find_candidates, rescored
from ultimate_embedder.find.evaluate.measures import DEPTH, measure_rankings, perfect_order
from ultimate_embedder.find.evaluate.scoring import RowSource, rank_all, score_rows
from ultimate_embedder.find.evaluate.task import Task
from ultimate_embedder.find.evaluate.ways import Legs, Plan, Way

BLOCK_QUERIES = 256
MOST_DEPTH = 10_000  # chunks of a ranking, where documents have several
MOST_KEPT = 2_000  # queries whose candidates are kept, to tune weights
COMPARING = "comparing queries with all chunks"

Values = dict[str, np.ndarray]
"""By the name of a way: queries x measures."""


@dataclass(frozen=True)
class Rerank:
    """A reranker that orders the first candidates of one way again."""

    model: str
    base: str
    depth: int
    score: Callable[[Sequence[str], np.ndarray], np.ndarray]
    """From texts of queries and rows of candidates (-1: none) to a score for each."""

    @property
    def name(self) -> str:
        """The name of the way."""
        return f"{self.base}, {self.depth} reranked by {self.model}"


@dataclass(frozen=True)
class Search:
    """A collection and its queries, ready to be searched in all ways."""

    task: Task
    plan: Plan
    sources: Mapping[str, RowSource]
    candidates: int
    """Of each leg, that are fused."""
    ties: TieBreak
    collection: str = ""


@dataclass(frozen=True)
class Measured:
    """Every way with its measures for each query."""

    ways: list[Way]
    values: Values
    kept: list[Candidates]
    """The candidates of the first queries, block by block, if they are kept."""


def measure(
    search: Search, emit: Emit, *, ceiling_depth: int, rerank: Rerank | None = None, keep: bool = False
) -> Measured:
    """Measure all ways; with `keep` the candidates of the first queries are kept, to tune weights."""
    task, plan = search.task, search.plan
    ways = [*plan.ways, *_ceilings(plan.ways, ceiling_depth), *_reranked(plan.ways, rerank)]
    blocks: dict[str, list[np.ndarray]] = {way.name: [] for way in ways}
    kept = []
    emit(EvaluationStarted(collection=search.collection, what=COMPARING, total=len(task.ids)))
    for part in _parts(len(task.ids)):
        legs = _rank_legs(search, part)
        if keep and legs.candidates is not None and part.start < MOST_KEPT:
            kept.append(legs.candidates)
        for name, rankings in _rankings(search, part, legs, ceiling_depth, rerank):
            blocks[name].append(measure_rankings(rankings, task.relevant[part]))
        emit(EvaluationAdvanced(collection=search.collection, what=COMPARING, queries=part.stop - part.start))
    emit(EvaluationEnded(collection=search.collection, what=COMPARING))
    return Measured(ways, {name: np.concatenate(found) for name, found in blocks.items()}, kept)


def _parts(queries: int) -> Iterator[slice]:
    for start in range(0, queries, BLOCK_QUERIES):
        yield slice(start, min(start + BLOCK_QUERIES, queries))


def _depth(task: Task) -> int:
    """How many chunks a ranking must have so that it has enough documents."""
    per_document = -(-task.documents.chunks // max(1, task.documents.count))
    return min(task.documents.chunks, MOST_DEPTH, 2 * DEPTH * per_document)


def _rank_legs(search: Search, part: slice) -> Legs:
    plan = search.plan
    depth = max(_depth(search.task), search.candidates)
    rankings = rank_all(plan.scorers, search.sources, part, depth, search.ties)
    if len(plan.legs) < 2:
        return Legs(rankings)
    legs = {name: rankings[name] for name in plan.legs}
    rows, found = find_candidates(legs, search.candidates, search.ties)
    scorers = [scorer for scorer in plan.scorers if scorer.name in legs]
    return Legs(rankings, Candidates(rows, found, score_rows(scorers, search.sources, part, rows)))


def _rankings(
    search: Search, part: slice, legs: Legs, ceiling_depth: int, rerank: Rerank | None
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Yield the name of each way with its rankings of documents."""
    task, document = search.task, search.task.documents.document
    for way in search.plan.ways:
        if way.rank is None:
            continue
        ranking = way.rank(legs)
        documents = [as_documents(rows, document) for rows in ranking.rows]
        yield way.name, documents
        if _has_ceiling(way):
            first = [len(as_documents(rows[:ceiling_depth], document)) for rows in ranking.rows]
            yield ceiling_name(way.name, ceiling_depth), list(map(perfect_order, documents, task.relevant[part], first))
        if rerank is not None and rerank.base == way.name:
            scores = rerank.score(task.texts[part], ranking.rows[:, : rerank.depth])
            again = rescored(ranking, rerank.depth, scores)
            yield rerank.name, [as_documents(rows, document) for rows in again.rows]


def _has_ceiling(way: Way) -> bool:
    return way.kind in ("model", "fusion", "sparse", "hybrid", "vector_fusion") and " without " not in way.name


def _ceilings(ways: Sequence[Way], depth: int) -> Iterator[Way]:
    for way in filter(_has_ceiling, ways):
        name = ceiling_name(way.name, depth)
        yield Way(name, "ceiling", way.models, bytes_per_chunk=way.bytes_per_chunk, baseline=way.name)


def ceiling_name(base: str, depth: int) -> str:
    """The name of the best that a reranker could make of a way."""
    return f"{base}, best {depth} in perfect order"


def _reranked(ways: Sequence[Way], rerank: Rerank | None) -> Iterator[Way]:
    for way in ways:
        if rerank is not None and way.name == rerank.base:
            yield Way(rerank.name, "reranked", (*way.models, rerank.model), bytes_per_chunk=way.bytes_per_chunk)


def deciding(values: np.ndarray) -> np.ndarray:
    """The measure that decides, for each query."""
    return np.asarray(values[:, 0])
