"""Sparse vectors in memory: rows of indices and values."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ultimate_embedder.sparse import (
    SparseVectors,
    join_sparse,
    no_sparse_vectors,
    sparse_cosines,
    sparse_from_dense,
    sparse_from_rows,
    sparse_problem,
)


@pytest.fixture
def dense() -> np.ndarray:
    """Rows of which the first, the last and one between are empty."""
    rng = np.random.default_rng(0)
    made = np.where(rng.random((9, 12)) > 0.6, rng.random((9, 12)), 0).astype(np.float32)
    made[[0, 4, 8]] = 0
    return made


def test_rows_come_back_as_they_were(dense: np.ndarray) -> None:
    sparse = sparse_from_dense(dense)
    assert np.array_equal(sparse.to_dense(12), dense)
    assert np.array_equal(sparse.take(np.array([8, 2, 2, 0])).to_dense(12), dense[[8, 2, 2, 0]])
    assert np.array_equal(sparse.slice(3, 6).to_dense(12), dense[3:6])
    assert np.array_equal(join_sparse([sparse, no_sparse_vectors(2), sparse]).to_dense(12)[11:], dense)
    assert np.allclose(sparse.row_sums, dense.sum(axis=1))
    again = sparse_from_rows([sparse[row] for row in range(9)])
    assert all(np.array_equal(getattr(again, name), getattr(sparse, name)) for name in ("indptr", "indices", "values"))
    assert [each.dtype.name for each in (again.indptr, again.indices, again.values)] == ["int64", "uint32", "float32"]
    with pytest.raises(IndexError):
        sparse[9]


def test_what_is_wrong_with_rows_is_found(dense: np.ndarray) -> None:
    good = sparse_from_dense(dense)
    assert sparse_problem(good) is None
    assert sparse_problem(no_sparse_vectors()) is sparse_problem(no_sparse_vectors(3)) is None

    def problem(**changed: np.ndarray) -> str | None:
        return sparse_problem(dataclasses.replace(good, **changed))

    assert problem(indices=good.indices[::-1]) == "its indices are not ascending"
    assert problem(values=good.values[:-1]) == "it has not a value for every index"
    assert problem(values=np.full_like(good.values, np.nan)) == "it has values that are not finite"
    assert problem(indptr=good.indptr[:-2]) == "its rows overlap, or are not complete"
    assert problem(indptr=good.indptr[::-1]) == "its rows overlap, or are not complete"


def test_cosines_of_sparse_rows_are_those_of_the_same_rows_in_full(dense: np.ndarray) -> None:
    ours, other = dense.copy(), dense.copy()
    other[1:] *= 3
    ours[2] = np.roll(ours[2], 1)
    found = sparse_cosines(sparse_from_dense(ours), sparse_from_dense(other))
    lengths = np.linalg.norm(ours[2]) * np.linalg.norm(other[2])
    assert found[2] == pytest.approx(float(ours[2] @ other[2]) / lengths)
    assert np.allclose(np.delete(found, 2), 1)  # two empty rows are the same
    assert sparse_cosines(no_sparse_vectors(1), sparse_from_rows([([3], [1.0])])).tolist() == [0]


def test_a_row_is_a_view(dense: np.ndarray) -> None:
    sparse: SparseVectors = sparse_from_dense(dense)
    indices, values = sparse[1]
    assert np.array_equal(dense[1][indices], values)
    assert len(sparse[0][0]) == 0
