"""Sparse vectors: rows of indices and values, one after the other (CSR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class SparseVectors:
    """Rows of sparse vectors: row i has `indices[indptr[i]:indptr[i + 1]]`, ascending, and the values there.

    `scipy.sparse.csr_array((values, indices, indptr))` takes the same arrays.
    """

    indptr: np.ndarray
    """int64, one more than rows."""
    indices: np.ndarray
    """uint32"""
    values: np.ndarray
    """float32"""

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices and values of one row."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        start, stop = self.indptr[row % len(self)], self.indptr[row % len(self) + 1]
        return self.indices[start:stop], self.values[start:stop]

    @property
    def lengths(self) -> np.ndarray:
        """How many values each row has."""
        return np.diff(self.indptr)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        return int(self.indptr.nbytes + self.indices.nbytes + self.values.nbytes)

    @property
    def row_sums(self) -> np.ndarray:
        """The sum of each row's values, in float64."""
        sums = np.concatenate([[0.0], np.cumsum(self.values, dtype=np.float64)])
        return np.asarray(sums[self.indptr[1:]] - sums[self.indptr[:-1]])

    def take(self, rows: np.ndarray) -> SparseVectors:
        """These rows, in this order; a row may be wanted several times."""
        lengths = self.lengths[rows]
        indptr = _pointers(lengths)
        # the place of each value: the start of its row, and how far it is from there
        places = np.repeat(self.indptr[:-1][rows] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return SparseVectors(indptr, self.indices[places], self.values[places])

    def slice(self, start: int, stop: int) -> SparseVectors:
        """Consecutive rows, without a copy of their values."""
        first, last = self.indptr[start], self.indptr[stop]
        return SparseVectors(self.indptr[start : stop + 1] - first, self.indices[first:last], self.values[first:last])

    def places(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place of each value's index among `words`, which ascend, and whether it is one of them."""
        if not len(words):
            return np.zeros(len(self.indices), np.int64), np.zeros(len(self.indices), bool)
        places = np.minimum(np.searchsorted(words, self.indices), len(words) - 1)
        return places, words[places] == self.indices

    def to_dense(self, dim: int) -> np.ndarray:
        """The same as a float32 array with `dim` columns."""
        dense = np.zeros((len(self), dim), np.float32)
        dense[np.repeat(np.arange(len(self)), self.lengths), self.indices] = self.values
        return dense


def no_sparse_vectors(rows: int = 0) -> SparseVectors:
    """Rows without any values."""
    return SparseVectors(np.zeros(rows + 1, np.int64), np.empty(0, np.uint32), np.empty(0, np.float32))


def sparse_from_rows(rows: Sequence[tuple[Any, Any]]) -> SparseVectors:
    """Rows of indices, ascending, and values."""
    if not rows:
        return no_sparse_vectors()
    indptr = _pointers(np.array([len(indices) for indices, _ in rows], np.int64))
    indices = np.concatenate([np.asarray(indices, np.uint32) for indices, _ in rows])
    values = np.concatenate([np.asarray(values, np.float32) for _, values in rows])
    return SparseVectors(indptr, indices, values)


def sparse_from_dense(vectors: np.ndarray) -> SparseVectors:
    """The values of an array that are not 0."""
    rows, columns = np.nonzero(vectors)
    indptr = _pointers(np.bincount(rows, minlength=len(vectors)))
    return SparseVectors(indptr, columns.astype(np.uint32), vectors[rows, columns].astype(np.float32))


def join_sparse(parts: Sequence[SparseVectors]) -> SparseVectors:
    """All rows of several parts, one part after the other."""
    if not parts:
        return no_sparse_vectors()
    return SparseVectors(
        _pointers(np.concatenate([part.lengths for part in parts])),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def sparse_problem(vectors: SparseVectors) -> str | None:
    """What is wrong with rows that were read from somewhere; None if nothing is."""
    indptr, lengths = vectors.indptr, vectors.lengths
    if not len(indptr) or indptr[0] != 0 or (lengths < 0).any() or indptr[-1] != len(vectors.indices):
        return "its rows overlap, or are not complete"
    if len(vectors.values) != len(vectors.indices):
        return "it has not a value for every index"
    if not np.isfinite(vectors.values).all():
        return "it has values that are not finite"
    rising = np.diff(vectors.indices.astype(np.int64)) > 0
    begins = indptr[1:-1]  # the first of a row need not be above the last of the one before
    rising[begins[(begins > 0) & (begins < len(vectors.indices))] - 1] = True
    return None if rising.all() else "its indices are not ascending"


def sparse_cosines(ours: SparseVectors, reference: SparseVectors) -> np.ndarray:
    """Cosine similarity of each row to the same row of the reference; two empty ones are the same."""
    found = np.ones(len(ours))
    for row in range(len(ours)):
        (left, left_values), (right, right_values) = ours[row], reference[row]
        if len(left) or len(right):
            _, at, there = np.intersect1d(left, right, assume_unique=True, return_indices=True)
            lengths = float(np.linalg.norm(left_values) * np.linalg.norm(right_values))
            found[row] = float(left_values[at] @ right_values[there]) / lengths if lengths else 0.0
    return found


def _pointers(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
