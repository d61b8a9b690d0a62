"""The ways to search a collection that are compared: each model, fusions, sparse, hybrid, shorter and smaller vectors.

A way says how a ranking is made from those of its legs. Legs are scored once for all ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from ultimate_embedder.errors import UsageError
from ultimate_embedder.find.evaluate.quantize import SAMPLE_ROWS, Int8, binary
from ultimate_embedder.find.evaluate.ranking import Ranking, TieBreak, fuse_rankings, rescored
from ultimate_embedder.find.evaluate.scoring import Blocks, Scorer, sample_rows
from ultimate_embedder.find.evaluate.sources import FusedVectors, ModelVectors, Sources
from ultimate_embedder.find.score_fusion import SCORE_FUSIONS
from ultimate_embedder.vectors import FUSIONS, Fusion, plan_fusion, shorten

Kind = Literal["model", "fusion", "vector_fusion", "sparse", "hybrid", "matryoshka", "quantized", "reranked", "ceiling"]
Rankings = Mapping[str, Ranking]
FLOAT_BYTES = 4
RESCORED = 100  # candidates whose order the original vectors decide, after a search by bits
LEAST_SHARE = 8  # of a model's dimensions: shorter vectors than an eighth are evaluated only if asked for
VECTOR_FUSIONS = tuple(method for method in FUSIONS if method != "named")
DEFAULT_SCORE_FUSION = SCORE_FUSIONS[0]


@dataclass(frozen=True)
class Way:
    """A way to search."""

    name: str
    kind: Kind
    rank: Callable[[Rankings], Ranking]
    """From the rankings of the legs to its own."""
    models: tuple[str, ...]
    """The models and sparse vectors that it needs."""
    bytes_per_chunk: int | None = None
    """Of the dense vectors that a server must hold for it."""
    baseline: str | None = None
    """The way that it is compared with, where that is not the best model."""
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """What is scored, and the ways that are made of it."""

    scorers: tuple[Scorer, ...]
    ways: tuple[Way, ...]
    notes: tuple[str, ...] = ()


def plan_ways(
    sources: Sources,
    sparse: Mapping[str, float],
    *,
    chunks: int,
    dims: Sequence[int],
    candidates: int,
    ties: TieBreak,
    seed: int,
) -> Plan:
    """All ways to search a collection; `sparse` has the weights of its sparse vectors by name."""
    scorers: list[Scorer] = []
    ways: list[Way] = []
    notes: list[str] = []
    for model in sources.models:
        scorers.append(_plain(model))
        size = model.dim * FLOAT_BYTES
        ways.append(Way(model.name, "model", partial(_leg, model.name), (model.name,), size))
    if sources.fused is not None:
        scorer, way = _exported_fusion(sources.fused)
        scorers.append(scorer)
        ways.append(way)
    elif len(sources.models) > 1:
        for method in VECTOR_FUSIONS:
            try:
                scorer, way = _vector_fusion(method, sources.models)
            except UsageError as error:  # no common dimension
                notes.append(f"{method} is left out: {error}")
                continue
            scorers.append(scorer)
            ways.append(way)
    legs = [_LegWeight(model.name, model.weight, model.dim * FLOAT_BYTES) for model in sources.models]
    ways += _score_fusions("", "fusion", legs, candidates, ties)
    if sparse:
        ways += [Way(name, "sparse", partial(_leg, name), (name,)) for name in sparse]
        every = [*legs, *(_LegWeight(name, weight, 0) for name, weight in sparse.items())]
        ways += _score_fusions("hybrid ", "hybrid", every, candidates, ties)
    for model in sources.models:
        for scorer, more in _smaller(model, chunks, dims, seed):
            scorers.append(scorer)
            ways += more
    return Plan(tuple(scorers), tuple(ways), tuple(notes))


def _leg(name: str, rankings: Rankings) -> Ranking:
    return rankings[name]


def _plain(model: ModelVectors) -> Scorer:
    def unit(blocks: Blocks) -> np.ndarray:
        return shorten(blocks[model.name], None)

    return Scorer(model.name, unit, unit)


def _vector_fusion(method: str, models: Sequence[ModelVectors]) -> tuple[Scorer, Way]:
    fusion = plan_fusion(method, [model.candidate for model in models])
    names = tuple(model.name for model in models)

    def fused(blocks: Blocks) -> np.ndarray:
        return _fused(fusion, [blocks[name] for name in names])

    size = (fusion.vectors[0].dim or 0) * FLOAT_BYTES
    return Scorer(method, fused, fused), Way(method, "vector_fusion", partial(_leg, method), names, size)


def _exported_fusion(exported: FusedVectors) -> tuple[Scorer, Way]:
    """The fused vectors of the export, where those of the models are gone: queries are fused in the same way."""
    fusion = plan_fusion(exported.method, [model.candidate for model in exported.members])
    names = tuple(model.name for model in exported.members)

    def of_queries(blocks: Blocks) -> np.ndarray:
        return _fused(fusion, [blocks[name] for name in names])

    scorer = Scorer(exported.method, of_queries, lambda blocks: shorten(blocks[exported.method], None))
    size = (fusion.vectors[0].dim or 0) * FLOAT_BYTES
    return scorer, Way(exported.method, "vector_fusion", partial(_leg, exported.method), names, size)


def _fused(fusion: Fusion, vectors: Sequence[np.ndarray]) -> np.ndarray:
    (joined,) = fusion.fuse(vectors).values()
    return shorten(joined, None)


@dataclass(frozen=True)
class _LegWeight:
    name: str
    weight: float
    bytes_per_chunk: int


def _score_fusions(
    prefix: str, kind: Kind, legs: Sequence[_LegWeight], candidates: int, ties: TieBreak
) -> Iterator[Way]:
    """Every fusion of all legs, and the default one without each of them."""
    if len(legs) < 2:
        return
    for method in SCORE_FUSIONS:
        yield _score_fusion(f"{prefix}{method}", kind, method, legs, candidates, ties)
    if len(legs) < 3:
        return
    dense = [leg for leg in legs if leg.bytes_per_chunk]
    for without in dense if len(dense) > 1 else ():
        rest = [leg for leg in legs if leg is not without]
        name = f"{prefix}{DEFAULT_SCORE_FUSION} without {without.name}"
        yield _score_fusion(name, kind, DEFAULT_SCORE_FUSION, rest, candidates, ties)


def _score_fusion(
    name: str, kind: Kind, method: str, legs: Sequence[_LegWeight], candidates: int, ties: TieBreak
) -> Way:
    def rank(rankings: Rankings) -> Ranking:
        chosen = [rankings[leg.name] for leg in legs]
        return fuse_rankings(method, chosen, [leg.weight for leg in legs], candidates, ties)

    return Way(name, kind, rank, tuple(leg.name for leg in legs), sum(leg.bytes_per_chunk for leg in legs))


def _smaller(model: ModelVectors, chunks: int, dims: Sequence[int], seed: int) -> Iterator[tuple[Scorer, list[Way]]]:
    """Truncated and quantized vectors of a model."""
    trained = model.shorter_dims
    wanted = [dim for dim in dims if dim < model.dim] or [dim for dim in trained if dim * LEAST_SHARE >= model.dim]
    for dim in sorted(set(wanted), reverse=True):
        note = "" if dim in trained else "the model is not known to be trained for it"
        yield _truncated(model, dim, note)
    bounds = Int8.of(shorten(sample_rows(model.vectors, chunks, SAMPLE_ROWS, seed), None))
    yield _quantized(model, "int8", bounds, model.dim, rescore=False)
    yield _quantized(model, "binary", binary, -(-model.dim // 8), rescore=True)


def _truncated(model: ModelVectors, dim: int, note: str) -> tuple[Scorer, list[Way]]:
    name = f"{model.name}, {dim} dims"

    def cut(blocks: Blocks) -> np.ndarray:
        return shorten(blocks[model.name], dim)

    way = Way(name, "matryoshka", partial(_leg, name), (model.name,), dim * FLOAT_BYTES, model.name, note)
    return Scorer(name, cut, cut), [way]


def _quantized(
    model: ModelVectors, how: str, quantize: Callable[[np.ndarray], np.ndarray], size: int, *, rescore: bool
) -> tuple[Scorer, list[Way]]:
    name = f"{model.name}, {how}"

    def coarse(blocks: Blocks) -> np.ndarray:
        return quantize(shorten(blocks[model.name], None))

    ways = [Way(name, "quantized", partial(_leg, name), (model.name,), size, model.name)]
    if rescore:
        again = f"{name}, {RESCORED} rescored"
        ways.append(
            Way(
                again,
                "quantized",
                lambda rankings: rescored(rankings[name], RESCORED),
                (model.name,),
                size,
                model.name,
                "the original vectors are on disk",
            )
        )
    return Scorer(name, coarse, coarse, exact=model.name if rescore else None), ways
