"""Read `chunks.parquet`, for `upload` and `verify`."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ultimate_embedder.errors import UploadError
from ultimate_embedder.export.parquet import ORIGIN, VECTOR, is_vector_column, vector_column, vector_name
from ultimate_embedder.export.payloads import PLAIN, ChunkToSend, PayloadKind
from ultimate_embedder.types import VectorSpec

Batch = tuple[list[str], dict[str, np.ndarray], list[dict[str, Any]]]
"""Point ids, vectors by name, payloads."""


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
    origin: Any = None
    """Where the vectors are from, as it was stored; None if an earlier version wrote the file."""
    kind: PayloadKind = PLAIN
    """The shape in which payloads and ids are read."""

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
        return cls(
            path=path,
            collection=described[b"collection"].decode(),
            target=described[b"target_qdrant_collection"].decode(),
            points=file.metadata.num_rows,
            vectors=tuple(
                VectorSpec(vector_name(column), _dim(column, kind))
                for column, kind in zip(schema.names, schema.types, strict=True)
                if is_vector_column(column)
            ),
            origin=json.loads(described.get(ORIGIN.encode(), b"null")),
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

    def read_chunks(self) -> pa.Table:
        """Everything but the vectors."""
        with _in_words(self.path):
            names = [name for name in pq.read_schema(self.path).names if not is_vector_column(name)]
            return pq.read_table(self.path, columns=names, page_checksum_verification=True)

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
        batch.validate(full=True)  # texts that are no UTF-8, offsets that lie
        vectors = {spec.name: _matrix(batch.column(vector_column(spec.name)), spec) for spec in self.vectors}
        lists = {name: batch.column(name).to_pylist() for name in COLUMNS}
        for name, values in lists.items():
            if name not in OPTIONAL_VALUES and not all(isinstance(value, str) for value in values):
                raise _DamagedError(f"a {name} is missing, or no text")
        ids = self._point_ids([str(uuid.UUID(value)) for value in lists["point_id"]], lists["chunk_id"])
        return ids, vectors, [self.kind.payload(_chunk(lists, row, self.collection)) for row in range(len(batch))]

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
