"""Read `chunks.parquet`, for `upload` and `verify`."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ultimate_embedder.errors import UploadError
from ultimate_embedder.export.parquet import (
    ORIGIN,
    SPARSE_FACTS,
    VECTOR,
    is_sparse_column,
    is_vector_column,
    sparse_columns,
    sparse_name,
    vector_column,
    vector_name,
)
from ultimate_embedder.export.payloads import PLAIN, ChunkToSend, PayloadKind
from ultimate_embedder.export.sparse_facts import read_sparse_facts
from ultimate_embedder.sparse import SparseVectors, join_sparse, sparse_problem
from ultimate_embedder.types import SparseFacts, VectorSpec

Batch = tuple[list[str], dict[str, Any], list[dict[str, Any]]]
"""Point ids, vectors by name (arrays, and `SparseVectors`), payloads."""


COLUMNS = ("chunk_id", "point_id", "file", "text", "metadata", "extra")
OPTIONAL_VALUES = ("metadata",)
AGAIN = "Run the same embed command again to rewrite it: vectors that are stored are not computed again."


@dataclass(frozen=True)
class PointsFile:
    """The metadata of a `chunks.parquet`, and access to its rows. What is wrong with it is an `UploadError`."""

    path: Path
    collection: str
    target: str
    points: int
    vectors: tuple[VectorSpec, ...]
    """The dense ones, then the sparse ones."""
    origin: Any = None
    """Where the vectors are from, as it was stored; None if an earlier version wrote the file."""
    kind: PayloadKind = PLAIN
    """The shape in which payloads and ids are read."""
    sparse: tuple[SparseFacts, ...] = ()
    """What is known of each sparse vector."""

    @classmethod
    def open(cls, path: Path, kind: PayloadKind = PLAIN) -> PointsFile:
        """Read the metadata, not the points."""
        with _in_words(path):
            if not path.is_file():
                raise _DamagedError("it is not a file")
            with pq.ParquetFile(path) as file:
                return replace(cls._describe(path, file), kind=kind)

    @classmethod
    def _describe(cls, path: Path, file: pq.ParquetFile) -> PointsFile:
        schema = file.schema_arrow
        described = schema.metadata or {}
        if b"target_qdrant_collection" not in described:
            raise UploadError(f"{path} was not written by 'ultimate-embedder embed' and has no points.")
        missing = [name for name in COLUMNS if name not in schema.names]
        if not any(map(is_vector_column, schema.names)):
            missing.append(VECTOR)
        if missing or b"collection" not in described or len(set(schema.names)) < len(schema.names):
            raise _DamagedError(f"it has no column {missing[0]}" if missing else "its columns are not those of embed")
        sparse = read_sparse_facts(json.loads(described.get(SPARSE_FACTS.encode(), b"null")))
        if [each.name for each in sparse] != _sparse_names(schema):
            raise _DamagedError("its sparse vectors are not those that it describes")
        return cls(
            path=path,
            collection=described[b"collection"].decode(),
            target=described[b"target_qdrant_collection"].decode(),
            points=file.metadata.num_rows,
            vectors=(
                *(
                    VectorSpec(vector_name(column), _dim(column, kind))
                    for column, kind in zip(schema.names, schema.types, strict=True)
                    if is_vector_column(column)
                ),
                *(VectorSpec(each.name, None, "sparse") for each in sparse),
            ),
            origin=json.loads(described.get(ORIGIN.encode(), b"null")),
            sparse=sparse,
        )

    @classmethod
    def lazy_batches(cls, path: Path, rows: int) -> Iterator[Batch]:
        """The points of a file that is opened when the first of them is needed."""
        yield from cls.open(path).batches(rows)

    def ids(self, rows: int) -> Iterator[list[str]]:
        """Yield the point ids, `rows` at a time."""
        for batch in self._read(rows, ["point_id", "chunk_id"]):
            yield self._point_ids(batch.column("point_id").to_pylist(), batch.column("chunk_id").to_pylist())

    def batches(self, rows: int) -> Iterator[Batch]:
        """Yield point ids, vectors by name and payloads, `rows` at a time or fewer."""
        start = 0
        for batch in self._read(rows, None):
            with _in_words(self.path, start):
                ids, vectors, payloads = self._join(batch)
            yield ids, vectors, payloads
            start += len(batch)
        if start != self.points:
            raise UploadError(f"{self.path} is damaged: it has {start} of {self.points} points. {AGAIN}")

    def read_vectors(self, name: str, rows: int) -> np.ndarray:
        """All vectors of one name, a row for each point; read `rows` at a time."""
        (spec,) = (each for each in self.vectors if each.name == name)
        vectors = np.empty((self.points, spec.dim or 0), np.float32)
        start = 0
        for block in self.vector_blocks(name, rows):
            vectors[start : start + len(block)] = block
            start += len(block)
        return vectors

    def texts(self, rows: int) -> Iterator[tuple[list[str], list[str]]]:
        """Yield chunk ids and texts, `rows` at a time or fewer."""
        for batch in self._read(rows, ["chunk_id", "text"]):
            with _in_words(self.path):
                batch.validate(full=True)
                ids, texts = batch.column("chunk_id").to_pylist(), batch.column("text").to_pylist()
                if not all(isinstance(value, str) for value in (*ids, *texts)):
                    raise _DamagedError("a chunk_id or text is missing")
            yield ids, texts

    def vector_blocks(self, name: str, rows: int) -> Iterator[np.ndarray]:
        """Yield the vectors of one name, `rows` at a time or fewer."""
        (spec,) = (each for each in self.vectors if each.name == name)
        column = vector_column(name)
        start = 0
        for batch in self._read(rows, [column]):
            with _in_words(self.path, start):
                yield _matrix(batch.column(column), spec)
            start += len(batch)

    def read_sparse(self, name: str, rows: int) -> SparseVectors:
        """All sparse vectors of one name, a row for each point; read `rows` at a time."""
        return join_sparse(list(self.sparse_blocks(name, rows)))

    def sparse_blocks(self, name: str, rows: int) -> Iterator[SparseVectors]:
        """Yield the sparse vectors of one name, `rows` at a time or fewer."""
        start = 0
        for batch in self._read(rows, list(sparse_columns(name))):
            with _in_words(self.path, start):
                vectors = _sparse_rows(batch, name)
            yield vectors
            start += len(batch)

    def payload_batches(self, rows: int) -> Iterator[list[dict[str, Any]]]:
        """Yield the payloads alone, `rows` at a time or fewer."""
        start = 0
        for batch in self._read(rows, list(COLUMNS)):
            with _in_words(self.path, start):
                payloads = self._payloads(self._columns(batch))
            yield payloads
            start += len(batch)

    def read_payloads(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The payloads of some rows, in their order; only the row groups that hold them are read."""
        found: dict[int, dict[str, Any]] = {}
        with _in_words(self.path), pq.ParquetFile(self.path, page_checksum_verification=True) as file:
            start = 0
            for group in range(file.num_row_groups):
                end = start + file.metadata.row_group(group).num_rows
                mine = sorted({row for row in rows if start <= row < end})
                if mine:
                    table = file.read_row_group(group, columns=list(COLUMNS)).take([row - start for row in mine])
                    lists = self._columns(table)
                    found |= dict(zip(mine, self._payloads(lists), strict=True))
                start = end
        return [found[row] for row in rows]

    def read_chunks(self) -> pa.Table:
        """Everything but the vectors."""
        with _in_words(self.path):
            every = pq.read_schema(self.path).names
            names = [name for name in every if not is_vector_column(name) and not is_sparse_column(name)]
            return pq.read_table(self.path, columns=names, page_checksum_verification=True)

    def chunk_batches(self, rows: int, columns: list[str]) -> Iterator[dict[str, list[Any]]]:
        """Yield these columns of the chunks, as lists, `rows` at a time or fewer."""
        start = 0
        for batch in self._read(rows, columns):
            with _in_words(self.path, start):
                batch.validate(full=True)
                lists = {name: batch.column(name).to_pylist() for name in columns}
            yield lists
            start += len(batch)

    def _read(self, rows: int, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        with _in_words(self.path):
            file = pq.ParquetFile(self.path, page_checksum_verification=True)
        with file:
            # not across row groups: these are small where records are large
            groups = range(file.num_row_groups)
            batches = (
                each for group in groups for each in file.iter_batches(rows, row_groups=[group], columns=columns)
            )
            while True:
                with _in_words(self.path):
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch

    def _join(self, batch: pa.RecordBatch) -> Batch:
        vectors = {spec.name: _vectors(batch, spec) for spec in self.vectors}
        lists = self._columns(batch)
        ids = self._point_ids([str(uuid.UUID(value)) for value in lists["point_id"]], lists["chunk_id"])
        return ids, vectors, self._payloads(lists)

    def _columns(self, batch: pa.RecordBatch | pa.Table) -> dict[str, list[Any]]:
        batch.validate(full=True)  # texts that are no UTF-8, offsets that lie
        lists = {name: batch.column(name).to_pylist() for name in COLUMNS}
        for name, values in lists.items():
            if name not in OPTIONAL_VALUES and not all(isinstance(value, str) for value in values):
                raise _DamagedError(f"a {name} is missing, or no text")
        return lists

    def _payloads(self, lists: dict[str, list[Any]]) -> list[dict[str, Any]]:
        rows = range(len(lists["chunk_id"]))
        return [self.kind.payload(_chunk(lists, row, self.collection)) for row in rows]

    def _point_ids(self, plain: list[str], chunk_ids: list[str]) -> list[str]:
        if self.kind is PLAIN:
            return plain
        return [self.kind.point_id(self.collection, chunk_id) for chunk_id in chunk_ids]


class _DamagedError(Exception):
    """A points file that is not as it was written."""


@contextlib.contextmanager
def _in_words(path: Path, row: int | None = None) -> Iterator[None]:
    """Turn what a damaged file leads to into an `UploadError`."""
    try:
        yield
    except (_DamagedError, pa.ArrowException, OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        place = f" after row {row}" if row else ""
        raise UploadError(f"{path} cannot be read{place} ({reason}). {AGAIN}") from error


def _dim(column: str, kind: pa.DataType) -> int:
    if not pa.types.is_fixed_size_list(kind) or kind.value_type != pa.float32() or kind.list_size < 1:
        raise _DamagedError(f"column {column} is {kind}, and no vectors of float32")
    return int(kind.list_size)


def _sparse_names(schema: pa.Schema) -> list[str]:
    """The names of sparse vectors whose columns are there and of the right types."""
    names = [name for column in schema.names if (name := sparse_name(column)) is not None]
    for name in names:
        for column, kind in zip(sparse_columns(name), (pa.uint32(), pa.float32()), strict=True):
            found = schema.field(column).type if column in schema.names else None
            if found is None or not pa.types.is_list(found) or found.value_type != kind:
                raise _DamagedError(f"column {column} is {found}, and no lists of {kind}")
    return names


def _vectors(batch: pa.RecordBatch, spec: VectorSpec) -> np.ndarray | SparseVectors:
    return _sparse_rows(batch, spec.name) if spec.is_sparse else _matrix(batch.column(vector_column(spec.name)), spec)


def _sparse_rows(batch: pa.RecordBatch, name: str) -> SparseVectors:
    """The sparse vectors of this name, a row for each point."""
    indices, values = (batch.column(column) for column in sparse_columns(name))
    if indices.null_count or values.null_count:
        raise _DamagedError(f"a vector {name} is missing")
    lengths = indices.value_lengths()
    if not lengths.equals(values.value_lengths()):
        raise _DamagedError(f"a vector {name} has not a value for every index")
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths.to_numpy(), dtype=np.int64)])
    flat = [each.flatten() for each in (indices, values)]
    if any(each.null_count for each in flat):
        raise _DamagedError(f"a vector {name} has empty places")
    vectors = SparseVectors(indptr, *(each.to_numpy(zero_copy_only=False) for each in flat))
    if problem := sparse_problem(vectors):
        raise _DamagedError(f"{problem}: {name}")
    return vectors


def _matrix(column: Any, spec: VectorSpec) -> np.ndarray:
    """A column of vectors, a row each."""
    numbers = column.flatten()
    if column.null_count or numbers.null_count or len(numbers) != len(column) * (spec.dim or 0):
        raise _DamagedError(f"a vector {spec.name} is missing".replace("  ", " "))
    matrix: np.ndarray = numbers.to_numpy().reshape(len(column), spec.dim)
    if not np.isfinite(matrix).all():
        raise _DamagedError("a vector is not finite")
    return matrix


def _chunk(columns: dict[str, list[Any]], row: int, collection: str) -> ChunkToSend:
    record = json.loads(columns["extra"][row])
    if not isinstance(record, dict):
        raise _DamagedError("a record is no object")
    if columns["metadata"][row] is not None:
        record["metadata"] = json.loads(columns["metadata"][row])
    return ChunkToSend(columns["chunk_id"][row], collection, columns["file"][row], columns["text"][row], record)
