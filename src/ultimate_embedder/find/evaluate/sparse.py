"""Sparse vectors of a collection, compared with queries as Qdrant does: by dot products, with IDF where it applies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ultimate_embedder.export import PointsFile
from ultimate_embedder.find.evaluate.scoring import BLOCK_ROWS, Blocks, Scorer, regroup
from ultimate_embedder.find.evaluate.ways import SparseLeg
from ultimate_embedder.find.legs import SPARSE_WEIGHTS
from ultimate_embedder.find.sparse import inverse_frequencies
from ultimate_embedder.sparse import SparseVectors, join_sparse
from ultimate_embedder.types import SparseFacts

READ_ROWS = 1024


@dataclass(frozen=True)
class ExportedSparse:
    """Sparse vectors in the parquet export."""

    points: PointsFile
    name: str

    def blocks(self, rows: int) -> Iterator[SparseVectors]:
        """Yield the vectors, `rows` at a time; row groups are of any size."""
        batches = self.points.sparse_blocks(self.name, READ_ROWS)
        return regroup(
            batches, rows, join_sparse, lambda joined, start: joined.slice(start, min(start + rows, len(joined)))
        )


def make_sparse_leg(facts: SparseFacts, queries: SparseVectors, points: PointsFile) -> SparseLeg:
    """A leg for the vectors of the queries; with IDF, all chunks are read once to count the words."""
    source = ExportedSparse(points, facts.name)
    words = np.unique(queries.indices)
    weights = np.ones(len(words))
    if facts.modifier == "idf":
        frequency = sum((_frequencies(block, words) for block in source.blocks(BLOCK_ROWS)), np.zeros(len(words)))
        weights = inverse_frequencies(frequency, points.points)
    scorer = _sparse_scorer(facts.name, queries, words, weights)
    return SparseLeg(facts.name, scorer, source, SPARSE_WEIGHTS)


def _frequencies(block: SparseVectors, words: np.ndarray) -> np.ndarray:
    """In how many rows of a block each word occurs."""
    places, known = block.places(words)
    return np.bincount(places[known], minlength=len(words)).astype(np.float64)


def _sparse_scorer(name: str, queries: SparseVectors, words: np.ndarray, weights: np.ndarray) -> Scorer:
    def bind(part: slice) -> Callable[[Blocks], np.ndarray]:
        wanted = queries.slice(part.start, part.stop)
        table = np.zeros((len(words), len(wanted)), np.float32)
        places, known = wanted.places(words)
        columns = np.repeat(np.arange(len(wanted)), wanted.lengths)
        table[places[known], columns[known]] = wanted.values[known]
        table *= weights[:, None].astype(np.float32)
        return lambda blocks: np.asarray((_matrix(blocks[name], words) @ table).T)

    return Scorer(name, bind, zero_is_nothing=True)


def _matrix(block: SparseVectors, words: np.ndarray) -> Any:
    """A block as a sparse matrix of rows x words: only what queries ask for."""
    from scipy.sparse import csr_array

    places, known = block.places(words)
    before = np.concatenate([[0], np.cumsum(known)])
    return csr_array((block.values[known], places[known], before[block.indptr]), shape=(len(block), len(words)))
