"""Score all chunks for a block of queries: each way to compare vectors is a `Scorer`, and all read a block once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from ultimate_embedder.find.candidates import NO_ROW, Ranking, TieBreak, TopRows
from ultimate_embedder.sparse import SparseVectors

BLOCK_ROWS = 4096

Blocks = Mapping[str, Any]
"""What is known of the same rows, by the name of its source: dense vectors are arrays."""


class RowSource(Protocol):
    """Vectors of all chunks, in the order of the points file."""

    def blocks(self, rows: int) -> Iterator[Any]:
        """Yield the vectors, `rows` at a time."""
        ...


Rows = TypeVar("Rows", np.ndarray, SparseVectors)


def regroup(
    batches: Iterable[Rows], rows: int, join: Callable[[list[Rows]], Rows], cut: Callable[[Rows, int], Rows]
) -> Iterator[Rows]:
    """Batches of any size as blocks of `rows`, the last one smaller; `cut` takes that many from a row on."""
    held: list[Rows] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += len(batch)
        if count >= rows:
            joined, whole = join(held), count - count % rows
            yield from (cut(joined, start) for start in range(0, whole, rows))
            held, count = [cut(joined, whole)] if whole < count else [], count - whole
    if count:
        yield join(held)


@dataclass(frozen=True)
class Scorer:
    """A way to compare queries with chunks."""

    name: str
    bind: Callable[[slice], Callable[[Blocks], np.ndarray]]
    """For some of the queries: a function from a block of chunks to scores, queries x rows."""
    exact: str | None = None
    """The scorer whose scores the candidates of this one may be ordered by again."""
    zero_is_nothing: bool = False
    """Whether a score of 0 means that a chunk is not found, as with sparse vectors."""


def dot_products(
    name: str,
    queries: Blocks,
    of_queries: Callable[[Blocks], np.ndarray],
    of_chunks: Callable[[Blocks], np.ndarray],
    exact: str | None = None,
) -> Scorer:
    """A scorer by the dot product of what is made of the vectors of queries, and of those of chunks."""
    prepared = of_queries(queries)

    def bind(part: slice) -> Callable[[Blocks], np.ndarray]:
        chosen = prepared[part]
        return lambda blocks: chosen @ of_chunks(blocks).T

    return Scorer(name, bind, exact)


def rank_all(
    scorers: Sequence[Scorer], sources: Mapping[str, RowSource], part: slice, depth: int, ties: TieBreak
) -> dict[str, Ranking]:
    """The best `depth` rows for each query, by scorer. A scorer comes after the one that it names as exact."""
    bound = {scorer.name: scorer.bind(part) for scorer in scorers}
    count = part.stop - part.start
    tops = {each.name: TopRows(count, depth, ties, with_exact=each.exact is not None) for each in scorers}
    for start, blocks in _aligned(sources):
        scores: dict[str, np.ndarray] = {}
        for scorer in scorers:
            found = scores[scorer.name] = bound[scorer.name](blocks)
            exact = scores[scorer.exact] if scorer.exact is not None else None
            tops[scorer.name].add(
                start, np.where(found > 0, found, -np.inf) if scorer.zero_is_nothing else found, exact
            )
    return {name: top.ranking() for name, top in tops.items()}


def score_rows(
    scorers: Sequence[Scorer], sources: Mapping[str, RowSource], part: slice, rows: np.ndarray
) -> dict[str, np.ndarray]:
    """The scores of given rows (queries x rows, -1: none), by scorer."""
    bound = {scorer.name: scorer.bind(part) for scorer in scorers}
    scores = {scorer.name: np.zeros(rows.shape, np.float32) for scorer in scorers}
    for start, blocks in _aligned(sources):
        all_scores = {name: score(blocks) for name, score in bound.items()}
        width = next(iter(all_scores.values())).shape[1]
        query, column = np.nonzero((rows != NO_ROW) & (rows >= start) & (rows < start + width))
        for name, found in all_scores.items():
            scores[name][query, column] = found[query, rows[query, column] - start]
    return scores


def _aligned(sources: Mapping[str, RowSource]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the first row of each block, and what every source has for it."""
    iterators = [source.blocks(BLOCK_ROWS) for source in sources.values()]
    for number, blocks in enumerate(zip(*iterators, strict=True)):
        yield number * BLOCK_ROWS, dict(zip(sources, blocks, strict=True))


def sample_rows(source: RowSource, rows: int, most: int, seed: int) -> np.ndarray:
    """A random sample of the dense vectors of a source that has `rows` of them."""
    chosen = np.sort(np.random.default_rng(seed).permutation(rows)[:most])
    parts, start = [], 0
    for block in source.blocks(BLOCK_ROWS):
        inside = chosen[(chosen >= start) & (chosen < start + len(block))] - start
        parts.append(block[inside])
        start += len(block)
    return np.concatenate(parts)
