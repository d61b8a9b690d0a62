"""One collection, searched for all queries in every way."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.errors import UsageError
from ultimate_embedder.events import Emit
from ultimate_embedder.find.candidates import TieBreak
from ultimate_embedder.find.evaluate.documents import open_points
from ultimate_embedder.find.evaluate.judgements import Judgements
from ultimate_embedder.find.evaluate.measure import Measured, Rerank, Search, measure
from ultimate_embedder.find.evaluate.options import EvaluateConfig
from ultimate_embedder.find.evaluate.queries import Queries
from ultimate_embedder.find.evaluate.query_vectors import QueryVectors
from ultimate_embedder.find.evaluate.rerank import open_reranker
from ultimate_embedder.find.evaluate.scoring import RowSource
from ultimate_embedder.find.evaluate.sources import Sources, find_sources
from ultimate_embedder.find.evaluate.sparse import make_sparse_leg
from ultimate_embedder.find.evaluate.task import Task, make_task
from ultimate_embedder.find.evaluate.ways import Plan, SparseLeg, plan_ways
from ultimate_embedder.find.query import QueryModels
from ultimate_embedder.models import model_name
from ultimate_embedder.output import CollectionOutput, Output


@dataclass(frozen=True)
class Judged:
    """Queries and judgements, and what is to be said about them."""

    queries: Queries
    judgements: Judgements
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Searched:
    """A collection and what every way to search it is worth."""

    output: Output
    collection: CollectionOutput
    task: Task
    sources: Sources
    plan: Plan
    measured: Measured

    @property
    def default(self) -> str:
        """The way that search uses by default."""
        return self.plan.default

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said about ids, vectors and ways."""
        return (*self.task.notes, *self.sources.notes, *self.plan.notes)


def choose_collection(output: Output, name: str | None) -> CollectionOutput:
    """The collection of this name, or the only one."""
    if name is not None:
        return output[name]
    names = output.collections
    if len(names) != 1:
        known = ", ".join(names) or "none"
        raise UsageError(f"{output.folder} has {len(names)} collections ({known}). Name one with --collection.")
    return output[names[0]]


def search_collection(
    output: Output, collection: CollectionOutput, judged: Judged, config: EvaluateConfig, emit: Emit
) -> Searched:
    """Encode the queries, rank all chunks in every way, and measure the rankings."""
    points = open_points(collection)
    task = make_task(judged.queries, judged.judgements, points, config.doc_field)
    sources = find_sources(collection, points, task.documents.keys)
    place = config.place
    models = QueryModels(output.try_summary()[0], place.hub, place.model_folders)
    vectors = QueryVectors(output, collection, models, emit)
    queries = _encode_queries(vectors, task, sources)
    chunks = task.documents.chunks
    sparse = [
        make_sparse_leg(facts, vectors.encode_sparse(task.texts, facts, sources.sparse.get(facts.fingerprint)), points)
        for facts in points.sparse
    ]
    plan = plan_ways(sources, queries, sparse, chunks=chunks, dims=config.dims, seed=config.seed)
    ties = TieBreak(chunks, config.seed)
    search = Search(task, plan, _row_sources(sources, sparse), config.candidates, ties, collection.name)
    with contextlib.ExitStack() as stack:
        rerank = None
        if config.rerank is not None:
            score = stack.enter_context(open_reranker(config.rerank, place, points, emit))
            rerank = Rerank(model_name(config.rerank), plan.default, config.candidates, score)
        measured = measure(search, emit, ceiling_depth=config.candidates, rerank=rerank, keep=config.tune)
    return Searched(output, collection, task, sources, plan, measured)


def _encode_queries(vectors: QueryVectors, task: Task, sources: Sources) -> Mapping[str, np.ndarray]:
    models = {model.name: model for model in (*sources.models, *(sources.fused.members if sources.fused else ()))}
    return {name: vectors.encode(task.texts, model) for name, model in models.items()}


def _row_sources(sources: Sources, sparse: Sequence[SparseLeg]) -> dict[str, RowSource]:
    found: dict[str, RowSource] = {model.name: model.vectors for model in sources.models}
    found |= {each.name: each.source for each in sparse}
    if sources.fused is not None:
        found[sources.fused.method] = sources.fused.vectors
    return found
