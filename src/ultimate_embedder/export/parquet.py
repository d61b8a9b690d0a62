"""`chunks.parquet`: ids, text, metadata and vector of every chunk; what `upload` reads."""

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
from ultimate_embedder.export.points import PointBlock, Points, payload
from ultimate_embedder.files import whole_file

VECTOR = "vector"  # the column of a vector without a name; `vector_MODEL` where each model has its own


def write(points: Points, path: Path) -> None:
    """Write one row group a block."""
    schema = _schema(points)
    with whole_file(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for block in points.blocks():
            writer.write_batch(_record_batch(block, schema))


@dataclass(frozen=True)
class PointsFile:
    """What a `chunks.parquet` says of itself."""

    path: Path
    collection: str
    target: str
    points: int
    dims: dict[str, int]
    """Vectors of a point: name and dimension; '' for one without a name."""

    @classmethod
    def open(cls, path: Path) -> PointsFile:
        """Read the description, not the points."""
        try:
            return cls._describe(path)
        except (pa.ArrowInvalid, OSError) as error:
            reason = str(error).splitlines()[0]
            raise UploadError(f"{path} cannot be read ({reason}). Run embed again: it will be written anew.") from error

    @classmethod
    def _describe(cls, path: Path) -> PointsFile:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            described = schema.metadata or {}
            if b"target_qdrant_collection" not in described:
                raise UploadError(f"{path} was not written by 'ultimate-embedder embed', and holds no points.")
            columns = {name: kind for name, kind in zip(schema.names, schema.types, strict=True) if _is_vector(name)}
            return cls(
                path=path,
                collection=described[b"collection"].decode(),
                target=described[b"target_qdrant_collection"].decode(),
                points=file.metadata.num_rows,
                dims={_name(column): kind.list_size for column, kind in columns.items()},
            )

    def ids(self, rows: int) -> Iterator[list[str]]:
        """Yield the point ids, `rows` at a time."""
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(rows, columns=["point_id"]):
                yield batch.column("point_id").to_pylist()

    def batches(self, rows: int) -> Iterator[tuple[list[str], dict[str, np.ndarray], list[dict[str, Any]]]]:
        """Yield point ids, vectors by name and payloads, `rows` at a time."""
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(rows):
                columns = {name: batch.column(name) for name in batch.schema.names}
                vectors = {
                    name: columns.pop(_column(name)).flatten().to_numpy().reshape(len(batch), dim)
                    for name, dim in self.dims.items()
                }
                lists = {name: column.to_pylist() for name, column in columns.items()}
                payloads = [_payload(lists, row, self.collection) for row in range(len(batch))]
                yield lists["point_id"], vectors, payloads


def _schema(points: Points) -> pa.Schema:
    return pa.schema(
        [
            ("chunk_id", pa.string()),
            ("point_id", pa.string()),
            ("file", pa.string()),
            ("position", pa.int64()),
            ("text", pa.large_string()),
            ("metadata", pa.large_string()),
            ("extra", pa.large_string()),
            *((_column(name), pa.list_(pa.float32(), dim)) for name, dim in points.dims.items()),
        ],
        metadata={"collection": points.collection, "target_qdrant_collection": points.target},
    )


def _record_batch(block: PointBlock, schema: pa.Schema) -> pa.RecordBatch:
    metadata: list[str | None] = []
    extra: list[str] = []
    for record in map(json.loads, block.records):
        metadata.append(_dump(record.pop("metadata")) if "metadata" in record else None)
        extra.append(_dump(record))
    columns = [
        pa.array(block.ids, pa.string()),
        pa.array(block.point_ids, pa.string()),
        pa.array(block.files, pa.string()),
        pa.array(block.positions, pa.int64()),
        pa.array(block.texts, pa.large_string()),
        pa.array(metadata, pa.large_string()),
        pa.array(extra, pa.large_string()),
        *(
            pa.FixedSizeListArray.from_arrays(pa.array(each.reshape(-1), pa.float32()), each.shape[1])
            for each in block.vectors.values()
        ),
    ]
    return pa.record_batch(columns, schema=schema)


def _payload(columns: dict[str, list[Any]], row: int, collection: str) -> dict[str, Any]:
    record = json.loads(columns["extra"][row])
    if columns["metadata"][row] is not None:
        record["metadata"] = json.loads(columns["metadata"][row])
    return payload(columns["chunk_id"][row], collection, columns["file"][row], columns["text"][row], record)


def _column(name: str) -> str:
    return f"{VECTOR}_{name}" if name else VECTOR


def _name(column: str) -> str:
    return column.removeprefix(VECTOR).removeprefix("_")


def _is_vector(column: str) -> bool:
    return column == VECTOR or column.startswith(f"{VECTOR}_")


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
