"""Arrow IPC: files (Feather) and streams, such as those of Hugging Face datasets, are read batch by batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from ultimate_embedder.chunks.formats.arrow_messages import RECORDS, Message, read_messages, stream_start
from ultimate_embedder.chunks.formats.format import (
    BYTES_PER_BYTE,
    LARGEST_BATCH,
    LARGEST_RECORD,
    LEAST_MOST_BYTES,
    LEAST_MOST_ROWS,
    ROWS_PER_BYTE,
    ChunkFormat,
    Record,
    named,
)
from ultimate_embedder.chunks.formats.opened import open_file
from ultimate_embedder.chunks.formats.parquet_values import UNREADABLE, RowReader, first_line
from ultimate_embedder.types import Rejected

PATTERNS = ("*.arrow", "*.feather")
FEATHER_1 = b"FEA1"
OLD_FEATHER = "a Feather file of version 1, which pandas wrote until 2020. Read it with pandas and write it as Parquet"


def read(path: Path, name: str) -> Iterator[Record | Rejected]:
    """Yield the rows as records; of a damaged file, those of the batches before the damage."""
    with open_file(path) as raw, open_file(path) as ahead:
        if raw.read(len(FEATHER_1)) == FEATHER_1:
            yield Rejected(name, None, OLD_FEATHER)
            return
        rows = _Rows(raw, name)
        try:
            yield from rows.read(ahead)
        except UNREADABLE as error:
            yield rows.rejected(f"not readable as Arrow ({first_line(error)})")


class _Rows:
    """The rows of a file, and what they may amount to."""

    def __init__(self, raw: BinaryIO, name: str) -> None:
        size = os.fstat(raw.fileno()).st_size
        self._raw = raw
        self._name = name
        self._position = 0
        self._most_rows = LEAST_MOST_ROWS + size * ROWS_PER_BYTE
        self._most_bytes = self._left_bytes = LEAST_MOST_BYTES + size * BYTES_PER_BYTE

    def rejected(self, reason: str) -> Rejected:
        """Why the rest of the file is not read."""
        return Rejected(self._name, self._position, f"{reason}; {self._position:,} rows were read")

    def read(self, ahead: BinaryIO) -> Iterator[Record | Rejected]:
        """Yield all rows. `ahead` is the same file: what a batch takes is known before the reader sees it."""
        reader: Any = None
        for message in read_messages(ahead):
            if problem := self._problem(message):
                yield self.rejected(problem)
                return
            if reader is None:  # behind the first message, which is the schema
                self._raw.seek(stream_start(self._raw))
                reader = pa.ipc.open_stream(pa.PythonFile(self._raw, mode="r"))
                _check_types(reader.schema)
            if message.kind == RECORDS:
                yield from self._rows_of(reader.read_next_batch())
                if self._left_bytes < 0:
                    yield self.rejected(f"the file expands to more than {self._most_bytes:,} bytes, which is the limit")
                    return
        if self._position == 0:
            yield Rejected(self._name, None, "the file has no rows")

    def _problem(self, message: Message) -> str | None:
        """Why a message is not read."""
        if message.size_bytes > LARGEST_BATCH:
            taken = f"a batch would take {message.size_bytes:,} bytes of memory; {LARGEST_BATCH:,} is the limit"
            return f"{taken}. Write the file with fewer rows in a batch"
        if message.kind == RECORDS and self._position + message.rows > self._most_rows:
            return f"the file says that it has more than {self._most_rows:,} rows, which is the limit"
        return None

    def _rows_of(self, batch: pa.RecordBatch) -> Iterator[Record | Rejected]:
        _validate(batch)
        reader = RowReader(batch, self._name)
        for row in range(reader.rows):
            record = reader.record(row, self._position)
            if not isinstance(record, Rejected):
                size = _size(record[1])
                self._left_bytes -= size
                if self._left_bytes < 0:
                    return
                if size > LARGEST_RECORD:
                    reason = f"the row has more than {LARGEST_RECORD:,} characters, which is the limit"
                    record = Rejected(self._name, self._position, reason)
            yield record
            self._position += 1


def _validate(batch: pa.RecordBatch) -> None:
    """Raise an error if a value lies outside of its buffer. Texts that are not UTF-8 reject their row alone, later."""
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = column.view(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
        column.validate(full=True)


def _check_types(schema: pa.Schema) -> None:
    """Raise an error for a type by which one value can stand in billions of rows."""
    pending = [field.type for field in schema]
    while pending:
        kind = pending.pop()
        if pa.types.is_run_end_encoded(kind):
            raise TypeError("run-end encoded columns are not supported")
        pending += [kind.field(number).type for number in range(kind.num_fields) if pa.types.is_nested(kind)]


def _size(value: Any) -> int:
    """About how many characters a value has as JSON."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + _size(item) for key, item in value.items())
    return sum(map(_size, value)) + 1 if isinstance(value, list) else 1


FORMAT = ChunkFormat(name="Arrow", patterns=PATTERNS, matches=named(*PATTERNS), read=read, tabular=True)
