"""Score all chunks for a block of queries: each way to compare vectors is a `Scorer`, and all read a block once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.find.evaluate.ranking import Ranking, TieBreak, TopRows
from ultimate_embedder.find.evaluate.sources import RowVectors

BLOCK_ROWS = 4096

Blocks = Mapping[str, np.ndarray]
"""Vectors of the same rows, by the name of their source."""


@dataclass(frozen=True)
class Scorer:
    """A way to compare queries with chunks: the dot product of what it makes of both."""

    name: str
    queries: Callable[[Blocks], np.ndarray]
    """From the vectors of queries, by source, to what is compared."""
    chunks: Callable[[Blocks], np.ndarray]
    """The same for chunks."""
    exact: str | None = None
    """The scorer whose scores the candidates of this one may be ordered by again."""


def rank_all(
    scorers: Sequence[Scorer], sources: Mapping[str, RowVectors], queries: Blocks, depth: int, ties: TieBreak
) -> dict[str, Ranking]:
    """The best `depth` rows for each query, by scorer. A scorer comes after the one that it names as exact."""
    prepared = {scorer.name: scorer.queries(queries) for scorer in scorers}
    count = len(next(iter(queries.values())))
    tops = {scorer.name: TopRows(count, depth, ties, with_exact=scorer.exact is not None) for scorer in scorers}
    start = 0
    for blocks in _aligned(sources):
        scores: dict[str, np.ndarray] = {}
        for scorer in scorers:
            scores[scorer.name] = prepared[scorer.name] @ scorer.chunks(blocks).T
            exact = scores[scorer.exact] if scorer.exact is not None else None
            tops[scorer.name].add(start, scores[scorer.name], exact)
        start += len(next(iter(blocks.values())))
    return {name: top.ranking() for name, top in tops.items()}


def _aligned(sources: Mapping[str, RowVectors]) -> Iterator[dict[str, np.ndarray]]:
    iterators = [source.blocks(BLOCK_ROWS) for source in sources.values()]
    for blocks in zip(*iterators, strict=True):
        yield dict(zip(sources, blocks, strict=True))


def sample_rows(source: RowVectors, rows: int, most: int, seed: int) -> np.ndarray:
    """A random sample of the vectors of a source that has `rows` of them."""
    chosen = np.sort(np.random.default_rng(seed).permutation(rows)[:most])
    parts, start = [], 0
    for block in source.blocks(BLOCK_ROWS):
        inside = chosen[(chosen >= start) & (chosen < start + len(block))] - start
        parts.append(block[inside])
        start += len(block)
    return np.concatenate(parts)
