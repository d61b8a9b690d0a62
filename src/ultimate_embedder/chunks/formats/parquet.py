"""Read chunks from Parquet: a row is a record, with the columns as keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ultimate_embedder.chunks.formats.format import (
    BYTES_PER_BYTE,
    LARGEST_BATCH,
    LEAST_MOST_BYTES,
    LEAST_MOST_ROWS,
    ROWS_PER_BYTE,
    ChunkFormat,
    Record,
    named,
)
from ultimate_embedder.chunks.formats.opened import open_file
from ultimate_embedder.chunks.formats.parquet_footer import Leaf, RowGroup, read_footer
from ultimate_embedder.chunks.formats.parquet_pages import ColumnPages, column_pages
from ultimate_embedder.chunks.formats.parquet_values import UNREADABLE, RowReader, first_line
from ultimate_embedder.terminal import printable
from ultimate_embedder.types import Rejected

PATTERNS = ("*.parquet",)
BATCH_ROWS = (1024, 256, 64, 16, 4, 1)  # rows held in memory at a time: the most that fit
BATCH_BYTES = 64 << 20
BUFFER_BYTES = 1 << 20  # of compressed pages, of each column


def read(path: Path, name: str) -> Iterator[Record | Rejected]:
    """Yield the rows as records; of a damaged file, those of the row groups that are not."""
    with open_file(path) as raw:
        opened = _open(raw, name)
        if isinstance(opened, Rejected):
            yield opened
        else:
            yield from _read_groups(opened, name)


def _open(raw: BinaryIO, name: str) -> _Opened | Rejected:
    """The file and its metadata, or why it cannot be read."""
    import pyarrow.parquet as pq  # it loads slowly, and few collections are in Parquet

    try:
        with pq.ParquetFile(raw) as file:
            metadata = file.metadata
            footer = read_footer(raw)
    except UnicodeDecodeError:
        return Rejected(name, None, "the name of a column is not UTF-8")
    except UNREADABLE as error:
        return Rejected(name, 0, f"not a readable Parquet file ({first_line(error)}); 0 rows were read")
    most_rows = LEAST_MOST_ROWS + _size(raw) * ROWS_PER_BYTE
    if metadata.num_rows > most_rows:
        return Rejected(name, None, f"the file says that it has {metadata.num_rows:,} rows; {most_rows:,} is the limit")
    return _Opened(raw, metadata, footer.leaves, footer.groups)


@dataclass(frozen=True)
class _Opened:
    """A file and its metadata: Arrow's, and what we read ourselves."""

    raw: BinaryIO
    metadata: Any
    leaves: tuple[Leaf, ...]
    groups: tuple[RowGroup, ...]


def _read_groups(file: _Opened, name: str) -> Iterator[Record | Rejected]:
    position = rows_read = 0
    left_bytes = most_bytes = LEAST_MOST_BYTES + _size(file.raw) * BYTES_PER_BYTE
    for number, group in enumerate(file.groups):
        done = 0
        try:
            for reader in _readers(file, number, name):
                left_bytes -= reader.bytes
                if left_bytes < 0:
                    reason = f"the file expands to more than {most_bytes:,} bytes, which is the limit"
                    yield Rejected(name, position + done, f"{reason}; {rows_read + done} rows were read")
                    return
                for row in range(reader.rows):
                    yield reader.record(row, position + done)
                    done += 1
        except UNREADABLE as error:
            where = f"row group {number} is not readable" if len(file.groups) > 1 else "not readable"
            reason = f"{where} ({first_line(error)}); {rows_read + done} rows were read"
            yield Rejected(name, position + done, reason)
        except _TooLargeError as error:
            yield Rejected(name, position, f"row group {number} is not read: {error}")
        position += group.rows
        rows_read += done


class _TooLargeError(Exception):
    """A row group may take more memory than the limit."""


@dataclass(frozen=True)
class _GroupPlan:
    """How to read a row group in bounded memory."""

    rows: int
    as_dictionary: list[str]


def _plan(file: _Opened, number: int) -> _GroupPlan:
    """How to read a row group."""
    chunks = zip(file.groups[number].columns, file.leaves, strict=True)
    columns = [column_pages(file.raw, chunk, leaf) for chunk, leaf in chunks]
    fixed = sum(column.fixed_bytes() for column in columns)
    if fixed > LARGEST_BATCH:
        largest = printable(max(columns, key=ColumnPages.fixed_bytes).path)
        raise _TooLargeError(
            f"it may take {fixed:,} bytes of memory, most of them for {largest}; {LARGEST_BATCH:,} is the limit. "
            "Write the file with smaller pages and row groups"
        )
    rows = next((rows for rows in BATCH_ROWS if sum(c.bytes_of_rows(rows) for c in columns) <= BATCH_BYTES), 1)
    return _GroupPlan(rows, [column.path for column in columns if column.as_dictionary])


def _readers(file: _Opened, number: int, name: str) -> Iterator[RowReader]:
    """Yield the rows of a row group, a batch at a time."""
    import pyarrow.parquet as pq

    plan = _plan(file, number)
    options = {"read_dictionary": plan.as_dictionary, "buffer_size": BUFFER_BYTES}
    with pq.ParquetFile(file.raw, metadata=file.metadata, **options) as opened:
        for batch in opened.iter_batches(plan.rows, row_groups=[number], use_threads=False):
            yield RowReader(batch, name)


def _size(raw: BinaryIO) -> int:
    return os.fstat(raw.fileno()).st_size


FORMAT = ChunkFormat(name="Parquet", patterns=PATTERNS, matches=named(*PATTERNS), read=read, tabular=True)
