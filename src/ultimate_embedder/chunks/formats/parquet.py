"""Read chunks from Parquet: the column `text` is the text, the other columns are the record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from ultimate_embedder.chunks.formats.format import ChunkFormat, Record, first_keys, named, printable
from ultimate_embedder.chunks.formats.opened import open_file
from ultimate_embedder.chunks.formats.parquet_pages import ColumnPages, column_pages
from ultimate_embedder.chunks.formats.parquet_values import UNREADABLE, RowReader
from ultimate_embedder.types import Rejected

PATTERNS = ("*.parquet",)
BATCH_ROWS = (1024, 256, 64, 16, 4, 1)  # rows held in memory at a time: the most that fit
BATCH_BYTES = 64 << 20
BUFFER_BYTES = 1 << 20  # of compressed pages, of each column
LARGEST_ROW_GROUP = 1 << 30  # bytes in memory
ROWS_PER_BYTE = 64  # of the file; what repeats more often is no collection of texts
LEAST_MOST_ROWS = 1 << 20


def read(path: Path, name: str) -> Iterator[Record | Rejected]:
    """Yield the rows as records; of a damaged file, those of the row groups that are not."""
    with open_file(path) as raw:
        opened = _open(raw, name)
        if isinstance(opened, Rejected):
            yield opened
        else:
            yield from _read_groups(raw, opened, name)


def _open(raw: BinaryIO, name: str) -> Any:
    """The file's metadata, or why it cannot be read."""
    import pyarrow.parquet as pq  # it loads slowly, and few collections are in Parquet

    try:
        with pq.ParquetFile(raw) as file:
            metadata, columns = file.metadata, file.schema_arrow.names
    except UnicodeDecodeError:
        return Rejected(name, None, "the name of a column is not UTF-8")
    except UNREADABLE as error:
        return Rejected(name, 0, f"not a readable Parquet file ({_first_line(error)}); 0 rows were read")
    if "text" not in columns:
        return Rejected(name, None, f'no "text" column; its columns are: {first_keys(columns)}')
    most_rows = LEAST_MOST_ROWS + raw.seek(0, 2) * ROWS_PER_BYTE
    if metadata.num_rows > most_rows:
        return Rejected(name, None, f"the file says that it has {metadata.num_rows:,} rows; {most_rows:,} is the limit")
    return metadata


def _read_groups(raw: BinaryIO, metadata: Any, name: str) -> Iterator[Record | Rejected]:
    position = rows_read = 0
    for number in range(metadata.num_row_groups):
        group_rows = max(0, metadata.row_group(number).num_rows)
        done = 0
        try:
            plan = _plan(raw, metadata, number)
            if isinstance(plan, str):
                yield Rejected(name, position, f"row group {number} is not read: {plan}")
            else:
                for batch in _batches(raw, metadata, number, plan):
                    reader = RowReader(batch, name)
                    for row in range(batch.num_rows):
                        yield reader.record(row, position + done)
                        done += 1
        except UNREADABLE as error:
            where = f"row group {number} is not readable" if metadata.num_row_groups > 1 else "not readable"
            reason = f"{where} ({_first_line(error)}); {rows_read + done} rows were read"
            yield Rejected(name, position + done, reason)
        position += group_rows
        rows_read += done


@dataclass(frozen=True)
class _GroupPlan:
    """How to read a row group in bounded memory."""

    rows: int
    as_dictionary: list[str]


def _plan(raw: BinaryIO, metadata: Any, number: int) -> _GroupPlan | str:
    """How to read a row group, or why not."""
    group = metadata.row_group(number)
    columns = [column_pages(raw, group.column(n), metadata.schema.column(n)) for n in range(group.num_columns)]
    fixed = sum(column.fixed_bytes() for column in columns)
    if fixed > LARGEST_ROW_GROUP:
        largest = printable(max(columns, key=ColumnPages.fixed_bytes).path)
        return (
            f"it may take {fixed:,} bytes of memory, most of them for {largest}; {LARGEST_ROW_GROUP:,} is the limit. "
            "Write the file with smaller pages and row groups"
        )
    rows = next((rows for rows in BATCH_ROWS if sum(c.bytes_of_rows(rows) for c in columns) <= BATCH_BYTES), 1)
    return _GroupPlan(rows, [column.path for column in columns if column.as_dictionary])


def _batches(raw: BinaryIO, metadata: Any, number: int, plan: _GroupPlan) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    options = {"read_dictionary": plan.as_dictionary, "buffer_size": BUFFER_BYTES}
    with pq.ParquetFile(raw, metadata=metadata, **options) as file:
        yield from file.iter_batches(plan.rows, row_groups=[number], use_threads=False)


def _first_line(error: BaseException) -> str:
    return printable((str(error).strip() or type(error).__name__).splitlines()[0][:200])


FORMAT = ChunkFormat(name="Parquet", patterns=PATTERNS, matches=named(*PATTERNS), read=read)
