"""`chunks.parquet`: ids, text, metadata and vectors of every chunk. `points_file.py` reads it back.

A sparse vector has two columns of lists, `sparse_NAME_indices` and `sparse_NAME_values`; what is needed to encode
queries for it is in the metadata of the schema, under `sparse_vectors`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ultimate_embedder.export.format import ExportFormat, ExportSize
from ultimate_embedder.export.points import PointBlock, Points
from ultimate_embedder.export.sparse_facts import sparse_record
from ultimate_embedder.files import atomic_file
from ultimate_embedder.payload import parse_record

if TYPE_CHECKING:
    import pyarrow as pa

    from ultimate_embedder.sparse import SparseVectors

FILE_NAME = "chunks.parquet"
REPEATING_COLUMNS = ["file", "metadata", "extra"]
SORTED_COLUMNS = ["chunk_id", "point_id", "file", "position"]
POINT_BYTES = 24  # point id and position, compressed
ORIGIN = "vector_origin"
VECTOR = "vector"  # the column of an unnamed vector; named ones are in `vector_MODEL`
SPARSE, INDICES, VALUES = "sparse_", "_indices", "_values"
SPARSE_FACTS = "sparse_vectors"
ONLY_METADATA = '{"metadata": '
_ENCODER = json.JSONEncoder(ensure_ascii=False)  # json.dumps would make one for each record


def write(points: Points, path: Path) -> None:
    """Write one row group per block."""
    import pyarrow.parquet as pq

    schema = _schema(points)
    # page checksums: damage is noticed by whoever reads the file; a dictionary of vectors would only take space
    options = {
        "compression": "zstd",
        "use_dictionary": REPEATING_COLUMNS,
        "write_page_checksum": True,
        "write_statistics": SORTED_COLUMNS,  # the smallest number of all vectors is of no use
    }
    with atomic_file(path) as file, pq.ParquetWriter(file, schema, **options) as writer:
        for block in points.blocks():
            writer.write_batch(_record_batch(block, schema))


def vector_column(name: str) -> str:
    """The column of the vector of this name."""
    return f"{VECTOR}_{name}" if name else VECTOR


def vector_name(column: str) -> str:
    """The name of the vector in this column."""
    return column.removeprefix(VECTOR).removeprefix("_")


def is_vector_column(column: str) -> bool:
    """Whether the column holds vectors."""
    return column == VECTOR or column.startswith(f"{VECTOR}_")


def sparse_columns(name: str) -> tuple[str, str]:
    """The columns of the sparse vector of this name: indices and values."""
    return f"{SPARSE}{name}{INDICES}", f"{SPARSE}{name}{VALUES}"


def sparse_name(column: str) -> str | None:
    """The name of the sparse vector whose indices are in this column; None if it has none."""
    if not column.startswith(SPARSE) or not column.endswith(INDICES):
        return None
    return column.removeprefix(SPARSE).removesuffix(INDICES)


def is_sparse_column(column: str) -> bool:
    """Whether the column holds indices or values of sparse vectors."""
    return column.startswith(SPARSE) and column.endswith((INDICES, VALUES))


def _schema(points: Points) -> pa.Schema:
    import pyarrow as pa

    sparse = [spec.name for spec in points.vectors if spec.is_sparse]
    kinds = [pa.list_(pa.uint32()), pa.list_(pa.float32())]
    return pa.schema(
        [
            ("chunk_id", pa.string()),
            ("point_id", pa.string()),
            ("file", pa.string()),
            ("position", pa.int64()),
            ("text", pa.large_string()),
            ("metadata", pa.large_string()),
            ("extra", pa.large_string()),
            *(
                (vector_column(spec.name), pa.list_(pa.float32(), spec.dim))
                for spec in points.vectors
                if not spec.is_sparse
            ),
            *(column for name in sparse for column in zip(sparse_columns(name), kinds, strict=True)),
        ],
        metadata={
            "collection": points.collection,
            "target_qdrant_collection": points.target,
            ORIGIN: json.dumps(points.origin.as_record()),
            **({SPARSE_FACTS: json.dumps(sparse_record(points.sparse))} if sparse else {}),
        },
    )


def _record_batch(block: PointBlock, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    metadata, extra = zip(*map(_split, block.records), strict=True) if len(block) else ((), ())
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
        *(column for each in block.sparse.values() for column in _lists(each)),
    ]
    return pa.record_batch(columns, schema=schema)


def _lists(vectors: SparseVectors) -> list[pa.Array]:
    import pyarrow as pa

    offsets = pa.array(vectors.indptr, pa.int32())
    values = [pa.array(vectors.indices, pa.uint32()), pa.array(vectors.values, pa.float32())]
    return [pa.ListArray.from_arrays(offsets, each) for each in values]


def _split(content: str) -> tuple[str | None, str]:
    """The metadata of a record and the rest of it, as JSON; most records have one of the two, and are cut or kept."""
    record = parse_record(content)
    if "metadata" not in record:
        return None, content
    if len(record) == 1 and content.startswith(ONLY_METADATA):
        return content[len(ONLY_METADATA) : -1], "{}"
    return _ENCODER.encode(record.pop("metadata")), _ENCODER.encode(record)


def _size(size: ExportSize) -> int:
    return size.vector_bytes + size.sparse_bytes + size.zstd_bytes + size.rows * POINT_BYTES


EXPORT = ExportFormat(kind="parquet", file_name=lambda vectors: FILE_NAME, write=write, size=_size)
