"""Read `chunks.parquet`, for `upload` and `verify`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ultimate_embedder.errors import UploadError
from ultimate_embedder.export.parquet import is_vector_column, vector_column, vector_name
from ultimate_embedder.export.points import payload
from ultimate_embedder.types import VectorSpec


@dataclass(frozen=True)
class PointsFile:
    """The metadata of a `chunks.parquet`, and access to its rows."""

    path: Path
    collection: str
    target: str
    points: int
    vectors: tuple[VectorSpec, ...]

    @classmethod
    def open(cls, path: Path) -> PointsFile:
        """Read the metadata, not the points."""
        try:
            return cls._describe(path)
        except (pa.ArrowInvalid, OSError) as error:
            reason = str(error).splitlines()[0]
            raise UploadError(f"{path} cannot be read ({reason}). Run embed again to rewrite it.") from error

    @classmethod
    def _describe(cls, path: Path) -> PointsFile:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            described = schema.metadata or {}
            if b"target_qdrant_collection" not in described:
                raise UploadError(f"{path} was not written by 'ultimate-embedder embed' and has no points.")
            return cls(
                path=path,
                collection=described[b"collection"].decode(),
                target=described[b"target_qdrant_collection"].decode(),
                points=file.metadata.num_rows,
                vectors=tuple(
                    VectorSpec(vector_name(column), kind.list_size)
                    for column, kind in zip(schema.names, schema.types, strict=True)
                    if is_vector_column(column)
                ),
            )

    def ids(self, rows: int) -> Iterator[list[str]]:
        """Yield the point ids, `rows` at a time."""
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(rows, columns=["point_id"]):
                yield batch.column("point_id").to_pylist()

    def batches(self, rows: int) -> Iterator[tuple[list[str], dict[str, np.ndarray], list[dict[str, Any]]]]:
        """Yield point ids, vectors by name and payloads, `rows` at a time or fewer."""
        with pq.ParquetFile(self.path) as file:
            # not across row groups: these are small where records are large
            groups = range(file.num_row_groups)
            for batch in (each for group in groups for each in file.iter_batches(rows, row_groups=[group])):
                columns = {name: batch.column(name) for name in batch.schema.names}
                vectors = {
                    spec.name: columns.pop(vector_column(spec.name)).flatten().to_numpy().reshape(len(batch), spec.dim)
                    for spec in self.vectors
                }
                lists = {name: column.to_pylist() for name, column in columns.items()}
                payloads = [_payload(lists, row, self.collection) for row in range(len(batch))]
                yield lists["point_id"], vectors, payloads


def _payload(columns: dict[str, list[Any]], row: int, collection: str) -> dict[str, Any]:
    record = json.loads(columns["extra"][row])
    if columns["metadata"][row] is not None:
        record["metadata"] = json.loads(columns["metadata"][row])
    return payload(columns["chunk_id"][row], collection, columns["file"][row], columns["text"][row], record)
