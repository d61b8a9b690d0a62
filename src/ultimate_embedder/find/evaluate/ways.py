"""The ways to search a collection that are compared: each model, fusions, sparse, hybrid, shorter and smaller vectors.

A way says how a ranking is made from those of its legs. Legs are scored once for all ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from ultimate_embedder.errors import UsageError
from ultimate_embedder.find.candidates import Candidates, Ranking, rescored
from ultimate_embedder.find.evaluate.quantize import SAMPLE_ROWS, Int8, binary
from ultimate_embedder.find.evaluate.scoring import Blocks, RowSource, Scorer, dot_products, sample_rows
from ultimate_embedder.find.evaluate.sources import FusedVectors, ModelVectors, Sources
from ultimate_embedder.find.legs import relative_weights
from ultimate_embedder.find.options import DEFAULT_FUSION
from ultimate_embedder.find.score_fusion import SCORE_FUSIONS
from ultimate_embedder.vectors import FUSIONS, Fusion, plan_fusion, shorten

Kind = Literal["model", "fusion", "vector_fusion", "sparse", "hybrid", "matryoshka", "quantized", "reranked", "ceiling"]
FLOAT_BYTES = 4
RESCORED = 100  # candidates whose order the original vectors decide, after a search by bits
LEAST_SHARE = 8  # of a model's dimensions: shorter vectors than an eighth are evaluated only if asked for
VECTOR_FUSIONS = tuple(method for method in FUSIONS if method != "named")
HYBRID = "hybrid "


@dataclass(frozen=True)
class Legs:
    """What the legs of a collection found for a block of queries."""

    rankings: Mapping[str, Ranking]
    """By scorer."""
    candidates: Candidates | None = None
    """Of the legs that can be fused, if there are several."""


@dataclass(frozen=True)
class Way:
    """A way to search."""

    name: str
    kind: Kind
    models: tuple[str, ...]
    """The models and sparse vectors that it needs."""
    rank: Callable[[Legs], Ranking] | None = None
    """From what the legs found to its own ranking; None if that is made of another way's ranking."""
    bytes_per_chunk: int | None = None
    """Of the dense vectors that a server must hold for it."""
    baseline: str | None = None
    """The way that it is compared with, where that is not the best model."""
    note: str = ""


@dataclass(frozen=True)
class SparseLeg:
    """Sparse vectors of a collection, ready to be compared with the queries."""

    name: str
    scorer: Scorer
    source: RowSource
    weights: Mapping[str, float]
    """Its weight beside dense vectors that weigh 1 on average, by method of fusion."""


@dataclass
class Plan:
    """What is scored, and the ways that are made of it."""

    scorers: list[Scorer] = field(default_factory=list)
    ways: list[Way] = field(default_factory=list)
    legs: list[str] = field(default_factory=list)
    """The scorers whose results can be fused."""
    weights: dict[str, dict[str, float]] = field(default_factory=dict)
    """By method of fusion: the weight of each leg."""
    tuned: list[str] = field(default_factory=list)
    """The legs whose weights can be tuned: the models and sparse vectors."""
    default: str = ""
    """The way that search uses by default: all vectors that the points have."""
    notes: list[str] = field(default_factory=list)


def plan_ways(
    sources: Sources,
    queries: Blocks,
    sparse: Sequence[SparseLeg],
    *,
    chunks: int,
    dims: Sequence[int] = (),
    seed: int = 0,
) -> Plan:
    """All ways to search a collection; `queries` are the vectors of all queries by model."""
    plan = Plan()
    for model in sources.models:
        plan.scorers.append(_plain(model, queries))
        plan.ways.append(Way(model.name, "model", (model.name,), _ranking_of(model.name), model.dim * FLOAT_BYTES))
    _add_vector_fusions(plan, sources, queries)
    plan.legs = [*(model.name for model in sources.models), *(each.name for each in sparse)]
    plan.tuned = list(plan.legs)
    dense = relative_weights({model.name: model.weight for model in sources.models})
    for method in SCORE_FUSIONS:
        plan.weights[method] = dense | {each.name: each.weights.get(method, 1.0) for each in sparse}
    sizes = {model.name: model.dim * FLOAT_BYTES for model in sources.models}
    plan.ways += _score_fusions("", "fusion", list(dense), plan, sizes)
    plan.scorers += [each.scorer for each in sparse]
    plan.ways += [Way(each.name, "sparse", (each.name,), _ranking_of(each.name)) for each in sparse]
    if sparse and dense:
        plan.ways += _score_fusions(HYBRID, "hybrid", plan.legs, plan, sizes)
    _add_default(plan, sources, [each.name for each in sparse])
    for model in sources.models:
        for scorer, more in _smaller(model, queries, chunks, dims, seed):
            plan.scorers.append(scorer)
            plan.ways += more
    return plan


def _add_default(plan: Plan, sources: Sources, sparse: Sequence[str]) -> None:
    """Find the way that search uses by default; it is added where points have a fused vector and a sparse one."""
    names = [way.name for way in plan.ways]
    fused = next((way for way in plan.ways if way.name == sources.exported and way.kind == "vector_fusion"), None)
    if fused is not None and sparse:
        plan.legs.append(fused.name)
        plan.weights[DEFAULT_FUSION][fused.name] = 1.0
        plan.default = f"{HYBRID}{DEFAULT_FUSION} of {fused.name}"
        sizes = {fused.name: fused.bytes_per_chunk or 0}
        way = _score_fusion(plan.default, "hybrid", DEFAULT_FUSION, [fused.name, *sparse], plan, sizes)
        plan.ways.append(way)
    elif fused is not None:
        plan.default = fused.name
    else:
        wanted = (f"{HYBRID}{DEFAULT_FUSION}", DEFAULT_FUSION)
        plan.default = next((name for name in wanted if name in names), names[0])


def _ranking_of(name: str) -> Callable[[Legs], Ranking]:
    return lambda legs: legs.rankings[name]


def _plain(model: ModelVectors, queries: Blocks) -> Scorer:
    def unit(blocks: Blocks) -> np.ndarray:
        return shorten(blocks[model.name], None)

    return dot_products(model.name, queries, unit, unit)


def _add_vector_fusions(plan: Plan, sources: Sources, queries: Blocks) -> None:
    if sources.fused is not None:
        found = [_exported_fusion(sources.fused, queries)]
    elif len(sources.models) > 1:
        found = []
        for method in VECTOR_FUSIONS:
            try:
                found.append(_vector_fusion(method, sources.models, queries))
            except UsageError as error:  # no common dimension
                plan.notes.append(f"{method} is left out: {error}")
    else:
        return
    plan.scorers += [scorer for scorer, _ in found]
    plan.ways += [way for _, way in found]


def _vector_fusion(method: str, models: Sequence[ModelVectors], queries: Blocks) -> tuple[Scorer, Way]:
    fusion = plan_fusion(method, [model.candidate for model in models])
    names = tuple(model.name for model in models)

    def fused(blocks: Blocks) -> np.ndarray:
        return _fused(fusion, [blocks[name] for name in names])

    size = (fusion.vectors[0].dim or 0) * FLOAT_BYTES
    return dot_products(method, queries, fused, fused), Way(method, "vector_fusion", names, _ranking_of(method), size)


def _exported_fusion(exported: FusedVectors, queries: Blocks) -> tuple[Scorer, Way]:
    """The fused vectors of the export, where those of the models are gone: queries are fused in the same way."""
    method = exported.method
    fusion = plan_fusion(method, [model.candidate for model in exported.members])
    names = tuple(model.name for model in exported.members)
    scorer = dot_products(
        method,
        queries,
        lambda blocks: _fused(fusion, [blocks[name] for name in names]),
        lambda blocks: shorten(blocks[method], None),
    )
    size = (fusion.vectors[0].dim or 0) * FLOAT_BYTES
    return scorer, Way(method, "vector_fusion", names, _ranking_of(method), size)


def _fused(fusion: Fusion, vectors: Sequence[np.ndarray]) -> np.ndarray:
    (joined,) = fusion.fuse(vectors).values()
    return shorten(joined, None)


def _score_fusions(prefix: str, kind: Kind, legs: Sequence[str], plan: Plan, sizes: Mapping[str, int]) -> Iterator[Way]:
    """Every fusion of all legs, and the default one without each of the models."""
    if len(legs) < 2:
        return
    for method in SCORE_FUSIONS:
        yield _score_fusion(f"{prefix}{method}", kind, method, legs, plan, sizes)
    if len(legs) > 2 and len(sizes) > 1:
        for without in sizes:
            name = f"{prefix}{DEFAULT_FUSION} without {without}"
            rest = [leg for leg in legs if leg != without]
            yield _score_fusion(name, kind, DEFAULT_FUSION, rest, plan, sizes)


def _score_fusion(name: str, kind: Kind, method: str, legs: Sequence[str], plan: Plan, sizes: Mapping[str, int]) -> Way:
    weights = {leg: plan.weights[method][leg] for leg in legs}

    def rank(found: Legs) -> Ranking:
        if found.candidates is None:
            raise ValueError(f"there are no candidates for {name}")
        return found.candidates.fuse(method, weights)

    return Way(name, kind, tuple(legs), rank, sum(sizes.get(leg, 0) for leg in legs))


def _smaller(
    model: ModelVectors, queries: Blocks, chunks: int, dims: Sequence[int], seed: int
) -> Iterator[tuple[Scorer, list[Way]]]:
    """Truncated and quantized vectors of a model."""
    trained = model.shorter_dims
    wanted = [dim for dim in dims if dim < model.dim] or [dim for dim in trained if dim * LEAST_SHARE >= model.dim]
    for dim in sorted(set(wanted), reverse=True):
        note = "" if dim in trained else "the model is not known to be trained for it"
        yield _truncated(model, queries, dim, note)
    bounds = Int8.of(shorten(sample_rows(model.vectors, chunks, SAMPLE_ROWS, seed), None))
    yield _quantized(model, queries, "int8", bounds, model.dim, rescore=False)
    yield _quantized(model, queries, "binary", binary, -(-model.dim // 8), rescore=True)


def _truncated(model: ModelVectors, queries: Blocks, dim: int, note: str) -> tuple[Scorer, list[Way]]:
    name = f"{model.name}, {dim} dims"

    def cut(blocks: Blocks) -> np.ndarray:
        return shorten(blocks[model.name], dim)

    way = Way(name, "matryoshka", (model.name,), _ranking_of(name), dim * FLOAT_BYTES, model.name, note)
    return dot_products(name, queries, cut, cut), [way]


def _quantized(
    model: ModelVectors,
    queries: Blocks,
    how: str,
    quantize: Callable[[np.ndarray], np.ndarray],
    size: int,
    *,
    rescore: bool,
) -> tuple[Scorer, list[Way]]:
    name = f"{model.name}, {how}"

    def coarse(blocks: Blocks) -> np.ndarray:
        return quantize(shorten(blocks[model.name], None))

    make = partial(Way, kind="quantized", models=(model.name,), bytes_per_chunk=size, baseline=model.name)
    ways = [make(name, rank=_ranking_of(name))]
    if rescore:
        note = "the original vectors are read from disk"
        again = f"{name}, {RESCORED} rescored"
        ways.append(make(again, rank=lambda legs: rescored(legs.rankings[name], RESCORED), note=note))
    return dot_products(name, queries, coarse, coarse, exact=model.name if rescore else None), ways
