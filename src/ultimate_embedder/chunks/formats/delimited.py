"""CSV and TSV: the first row has the names of the columns. All values stay text, so that ids keep their zeros."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ultimate_embedder.chunks.formats.format import (
    LARGEST_RECORD,
    ChunkFormat,
    Record,
    first_keys,
    named,
    uncompressed_name,
)
from ultimate_embedder.chunks.formats.json_lines import nothing_in
from ultimate_embedder.chunks.formats.json_text import BLANKS, BLOCK_CHARACTERS
from ultimate_embedder.chunks.formats.opened import open_text
from ultimate_embedder.terminal import printable
from ultimate_embedder.types import Rejected

PATTERNS = ("*.csv", "*.tsv")
DELIMITERS = ",;\t|"  # of equally many in the header, the first
LINE_ENDS = ("\n", "\r")
MOST_READ_AGAIN = 4 * LARGEST_RECORD  # characters behind quotes that do not end


def read(path: Path, name: str) -> Iterator[Record | Rejected]:
    """Yield every row by the names of its columns; a row that is malformed is rejected alone."""
    # the limit belongs to the process; it is only ever raised
    csv.field_size_limit(max(csv.field_size_limit(), LARGEST_RECORD))
    with open_text(path, newline="") as file:
        lines = _Lines(file)
        tabs = uncompressed_name(path.name).endswith(".tsv")
        rows = _rows(lines, "\t" if tabs else lines.delimiter(), name)
        header = next(rows, None)
        if header is None:
            yield nothing_in(name, empty=lines.empty)
        elif isinstance(header, Rejected):
            yield Rejected(name, None, f"the header cannot be read: {header.reason}")
        else:
            yield from _records([column.strip(BLANKS) for column in header.values], rows, name)


@dataclass(frozen=True)
class _Row:
    """The values of a row, and the line where it begins."""

    values: list[str]
    line: int


def _records(columns: list[str], rows: Iterator[_Row | Rejected], name: str) -> Iterator[Record | Rejected]:
    position = -1
    for position, row in enumerate(rows):
        if isinstance(row, Rejected):
            yield Rejected(name, position, row.reason)
        elif len(row.values) != len(columns):
            counts = f"{len(row.values)} values where the header has {len(columns)}"
            yield Rejected(name, position, f"line {row.line} has {counts}: {first_keys(row.values)}")
        else:
            yield position, dict(zip(columns, row.values, strict=True))
    if position < 0:
        yield Rejected(name, None, f"the file has no rows, only a header: {first_keys(columns)}")


def _rows(lines: _Lines, delimiter: str, name: str) -> Iterator[_Row | Rejected]:
    """Yield the rows, without blank lines, or why one cannot be read."""
    # strict: a quote that does not end would swallow all rows after it
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        lines.begin_row()
        try:
            values = next(reader)
        except StopIteration:
            return
        except _TooLongError:
            reason = f"begins a row of more than {LARGEST_RECORD:,} characters, which is the limit"
            yield Rejected(name, None, f"line {lines.first} {reason}{lines.read_again()}")
        except csv.Error as error:
            reason = f"is not valid CSV ({printable(str(error))})"
            yield Rejected(name, None, f"line {lines.first} {reason}{lines.read_again()}")
        else:
            if len(values) > 1 or any(value.strip(BLANKS) for value in values):
                yield _Row(values, lines.first)


class _TooLongError(Exception):
    """A row has more than `LARGEST_RECORD` characters."""


class _Lines:
    """The lines of a file, of which those of the current row are kept: they are read again if it is malformed."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._again: deque[str] = deque()
        self._row: list[str] = []
        self._characters = 0
        self._left_to_read_again = MOST_READ_AGAIN
        self._read = 0
        self.empty = True
        """Whether the file has no characters at all."""

    @property
    def first(self) -> int:
        """The number of the line where the current row begins."""
        return self._read - len(self._row) + 1

    def delimiter(self) -> str:
        """What separates the values of the first line."""
        line = self._next_line()
        self._again.appendleft(line)
        outside = "".join(line.split('"')[::2])  # of the quotes
        return max(DELIMITERS, key=outside.count)

    def begin_row(self) -> None:
        """Forget the lines of the row before."""
        self._row, self._characters = [], 0

    def read_again(self) -> str:
        """Go on with the line after the first one of the row, and say how many were skipped where that is too much."""
        rest = self._row[1:]
        if not rest:
            return ""
        self._left_to_read_again -= self._characters
        if self._left_to_read_again < 0:
            return f"; the {len(rest):,} lines after it, which may belong to it, are skipped"
        self._again.extendleft(reversed(rest))
        self._read -= len(rest)
        self._row = self._row[:1]
        return ""

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._next_line()
        if not line:
            raise StopIteration
        self._read += 1
        self._row.append(line)
        self._characters += len(line)
        if self._characters > LARGEST_RECORD:
            raise _TooLongError
        return line

    def _next_line(self) -> str:
        if self._again:
            return self._again.popleft()
        line = self._file.readline(LARGEST_RECORD + 1)
        self.empty = self.empty and not line
        if len(line) > LARGEST_RECORD and not line.endswith(LINE_ENDS):
            while (part := self._file.readline(BLOCK_CHARACTERS)) and not part.endswith(LINE_ENDS):
                pass
            line += LINE_ENDS[0]  # too long, and complete
        return line


FORMAT = ChunkFormat(name="CSV", patterns=PATTERNS, matches=named(*PATTERNS, compressed=True), read=read, tabular=True)
