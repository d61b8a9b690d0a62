"""Read chunks from Parquet: the column `text` is the text, the other columns are the record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ultimate_embedder.chunks.formats.format import ChunkFormat, Record, named
from ultimate_embedder.types import Rejected

PATTERNS = ("*.parquet",)
PARQUET_ROWS = 1024  # rows held in memory at a time


def read(path: Path, name: str) -> Iterator[Record | Rejected]:
    """Yield the rows as records; of a damaged file, those before the damage."""
    import pyarrow.parquet as pq  # it loads slowly, and few collections are in Parquet

    position = 0
    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if "text" not in columns:
                yield Rejected(name, None, f'no "text" column; its columns are: {", ".join(columns)}')
                return
            for batch in file.iter_batches(PARQUET_ROWS):
                for row in range(batch.num_rows):
                    yield _record(batch, row, name, position)
                    position += 1
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, OSError) and not position:
            raise
        reason = f"not a readable Parquet file ({str(error).splitlines()[0]}); {position} rows were read"
        yield Rejected(name, position, reason)


def _record(batch: pa.RecordBatch, row: int, name: str, position: int) -> Record | Rejected:
    record = {}
    for column, values in zip(batch.schema.names, batch.columns, strict=True):
        try:
            record[column] = _plain(values[row].as_py())
        except UnicodeDecodeError:
            return Rejected(name, position, f'the column "{column}" is not UTF-8 in this row')
        except (ValueError, OverflowError):  # a time that Python cannot represent: nanoseconds, the year 20000
            record[column] = _as_text(values[row])
    return position, record


def _as_text(value: pa.Scalar) -> str:
    try:
        return str(value.cast(pa.string()).as_py())
    except pa.ArrowInvalid:
        return str(value.value)


def _plain(value: Any) -> Any:
    """Convert types that JSON does not have (dates, bytes, decimals) to text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


FORMAT = ChunkFormat(name="Parquet", patterns=PATTERNS, matches=named(*PATTERNS), read=read)
