"""The kinds of rows in a shard: vectors of one dimension in an npy file, sparse vectors in an Arrow file.

    npy      rows of (key of the text, whether it is beyond the token limit, float32 vector)
    Arrow    columns high, low (the key), truncated, indices (lists of uint32, ascending), values (lists of float32)

The store knows nothing else of what it stores.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from ultimate_embedder.sparse import SparseVectors, join_sparse, no_sparse_vectors, sparse_problem
from ultimate_embedder.state import UnfitError
from ultimate_embedder.types import PassIdentity, VectorKind

V = TypeVar("V")
# numpy evaluates the header of a file as Python
_NO_ARRAY = (OSError, ValueError, TypeError, SyntaxError, EOFError, OverflowError, RecursionError, TokenError)
_SPARSE_SCHEMA = pa.schema(
    [
        ("high", pa.uint64()),
        ("low", pa.uint64()),
        ("truncated", pa.bool_()),
        ("indices", pa.list_(pa.uint32())),
        ("values", pa.list_(pa.float32())),
    ]
)


@dataclass(frozen=True)
class ShardRows(Generic[V]):
    """The rows of a shard; vectors may be memory-mapped."""

    keys: np.ndarray
    truncated: np.ndarray
    vectors: V
    dim: int | None
    """None if they are sparse."""

    def __len__(self) -> int:
        return len(self.keys)


class RowKind(Protocol[V]):
    """How rows of one kind are kept in files and put together."""

    @property
    def suffix(self) -> str:
        """Of the file."""
        ...

    def dim(self, vectors: V) -> int | None:
        """Their dimension; None if they are sparse."""
        ...

    def size_bytes(self, vectors: V) -> int:
        """What they take in memory."""
        ...

    def join(self, parts: Sequence[V]) -> V:
        """All rows, one part after the other; there is at least one part."""
        ...

    def arrange(self, parts: Sequence[tuple[np.ndarray, V]], rows: int, dim: int | None) -> V:
        """Rows from several parts, each given with the places of its rows among all."""
        ...

    def take(self, vectors: V, rows: np.ndarray) -> V:
        """Some rows."""
        ...

    def problem(self, vectors: V) -> str | None:
        """Why they are of no use, to follow a path in a sentence; None if they are."""
        ...

    def encode(self, rows: ShardRows[V]) -> memoryview:
        """The content of a file."""
        ...

    def open(self, path: Path, *, known_good: bool = False) -> ShardRows[V]:
        """The rows in a file; raises `UnfitError` with what is wrong with it. `known_good`: it was opened before."""
        ...


def row_dtype(dim: int) -> np.dtype[Any]:
    """One row of a shard of dense vectors."""
    return np.dtype([("key", "<u8", (2,)), ("truncated", "?"), ("vector", "<f4", (dim,))])


class DenseRows:
    """Arrays with a row for each vector."""

    suffix = ".npy"

    def dim(self, vectors: np.ndarray) -> int | None:
        """Their dimension."""
        return int(vectors.shape[1])

    def size_bytes(self, vectors: np.ndarray) -> int:
        """What they take in memory."""
        return int(vectors.nbytes)

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """All rows, one part after the other."""
        return np.concatenate(parts)

    def arrange(self, parts: Sequence[tuple[np.ndarray, np.ndarray]], rows: int, dim: int | None) -> np.ndarray:
        """Rows from several parts, each given with the places of its rows among all."""
        vectors = np.empty((rows, dim or 0), np.float32)
        for places, part in parts:
            vectors[places] = part
        return vectors

    def take(self, vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Some rows."""
        return np.asarray(vectors[rows])

    def problem(self, vectors: np.ndarray) -> str | None:
        """Why they are of no use."""
        return None if np.isfinite(vectors).all() else "has vectors that are not finite"

    def encode(self, rows: ShardRows[np.ndarray]) -> memoryview:
        """The content of an npy file."""
        packed = np.empty(len(rows), row_dtype(rows.vectors.shape[1]))
        packed["key"], packed["truncated"], packed["vector"] = rows.keys, rows.truncated, rows.vectors
        buffer = io.BytesIO()
        np.save(buffer, packed)
        return buffer.getbuffer()

    def open(self, path: Path, *, known_good: bool = False) -> ShardRows[np.ndarray]:
        """The rows in an npy file, memory-mapped."""
        try:
            rows = np.load(path, mmap_mode="r")
        except _NO_ARRAY as error:
            raise UnfitError("it is no array") from error
        if rows.dtype.names != ("key", "truncated", "vector") or rows.dtype["vector"].ndim != 1:
            raise UnfitError("it has no vectors")
        dim = rows.dtype["vector"].shape[0]
        if rows.dtype != row_dtype(dim) or rows.ndim != 1:
            raise UnfitError("it has no rows of vectors")
        return ShardRows(rows["key"], rows["truncated"], rows["vector"], dim)


class SparseRows:
    """Rows of indices and values."""

    suffix = ".arrow"

    def dim(self, vectors: SparseVectors) -> int | None:
        """None: any index may occur."""
        return None

    def size_bytes(self, vectors: SparseVectors) -> int:
        """What they take in memory."""
        return vectors.nbytes

    def join(self, parts: Sequence[SparseVectors]) -> SparseVectors:
        """All rows, one part after the other."""
        return join_sparse(parts)

    def arrange(self, parts: Sequence[tuple[np.ndarray, SparseVectors]], rows: int, dim: int | None) -> SparseVectors:
        """Rows from several parts, each given with the places of its rows among all."""
        if not parts:
            return no_sparse_vectors(rows)
        order = np.argsort(np.concatenate([places for places, _ in parts]))
        return join_sparse([part for _, part in parts]).take(order)

    def take(self, vectors: SparseVectors, rows: np.ndarray) -> SparseVectors:
        """Some rows."""
        return vectors.take(rows)

    def problem(self, vectors: SparseVectors) -> str | None:
        """Why they are of no use; those in a file were looked at when it was opened."""
        return None

    def encode(self, rows: ShardRows[SparseVectors]) -> memoryview:
        """The content of an Arrow file."""
        vectors, offsets = rows.vectors, pa.array(rows.vectors.indptr.astype(np.int32))
        columns = [
            pa.array(rows.keys[:, 0]),
            pa.array(rows.keys[:, 1]),
            pa.array(np.asarray(rows.truncated, bool)),
            pa.ListArray.from_arrays(offsets, pa.array(vectors.indices, pa.uint32())),
            pa.ListArray.from_arrays(offsets, pa.array(vectors.values, pa.float32())),
        ]
        body = pa.BufferOutputStream()
        with pa.ipc.new_file(body, _SPARSE_SCHEMA) as writer:
            writer.write_batch(pa.record_batch(columns, schema=_SPARSE_SCHEMA))
        return memoryview(body.getvalue())

    def open(self, path: Path, *, known_good: bool = False) -> ShardRows[SparseVectors]:
        """The rows in an Arrow file, memory-mapped."""
        try:
            file = pa.ipc.open_file(pa.memory_map(str(path)))
            if file.schema != _SPARSE_SCHEMA or file.num_record_batches != 1:
                raise UnfitError("it has no sparse vectors")
            batch = file.get_batch(0)
            batch.validate(full=not known_good)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise error if isinstance(error, UnfitError) else UnfitError("it is no table") from error
        if any(column.null_count for column in batch.columns):
            raise UnfitError("it has rows without vectors")
        indices, values = batch.column("indices"), batch.column("values")
        if not indices.offsets.equals(values.offsets):
            raise UnfitError("it has not a value for every index")
        vectors = SparseVectors(
            indices.offsets.to_numpy().astype(np.int64),
            indices.values.to_numpy(zero_copy_only=False),
            values.values.to_numpy(zero_copy_only=False),
        )
        if not known_good and (problem := sparse_problem(vectors)):
            raise UnfitError(problem)
        keys = np.stack([batch.column("high").to_numpy(), batch.column("low").to_numpy()], axis=1)
        return ShardRows(keys, batch.column("truncated").to_numpy(zero_copy_only=False), vectors, None)


DENSE, SPARSE = DenseRows(), SparseRows()
ROW_KINDS: dict[VectorKind, RowKind[Any]] = {"dense": DENSE, "sparse": SPARSE}


def row_kind(identity: PassIdentity) -> RowKind[Any]:
    """The kind of rows that a pass has."""
    return ROW_KINDS[identity.kind]
