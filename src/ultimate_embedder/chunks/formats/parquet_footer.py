"""The metadata at the end of a Parquet file, as far as it says where pages are.

Arrow's own classes for it are for files that can be trusted: some of them end the process where a value is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from ultimate_embedder.chunks.formats.thrift import ThriftError, ThriftReader

MAGIC = b"PAR1"
TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 0}
REPEATED = 2


@dataclass(frozen=True)
class Leaf:
    """A column that has values of its own."""

    path: str
    width: int
    """Bytes of a value; 0 if each has its own length."""
    repeated: bool
    """Whether a row may have any number of values."""


@dataclass(frozen=True)
class ColumnChunk:
    """Where the pages of a column are, within one row group."""

    start: int
    stop: int
    values: int


@dataclass(frozen=True)
class RowGroup:
    """Some rows of the file."""

    rows: int
    columns: tuple[ColumnChunk, ...]


@dataclass(frozen=True)
class Footer:
    """Columns and row groups of a file."""

    leaves: tuple[Leaf, ...]
    groups: tuple[RowGroup, ...]


def read_footer(file: BinaryIO) -> Footer:
    """Read the metadata of a Parquet file. Raises ThriftError."""
    end = file.seek(0, 2)
    file.seek(max(0, end - 8))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or length > end - 8:
        raise ThriftError
    file.seek(end - 8 - length)
    try:
        fields = ThriftReader(file.read(length)).struct()
        leaves = tuple(_leaves(fields[2]))
        groups = tuple(_row_group(group, len(leaves)) for group in fields[4])
    except (LookupError, TypeError, AttributeError, UnicodeDecodeError):  # missing, or of another type
        raise ThriftError from None
    return Footer(leaves, groups)


def _leaves(elements: list[dict[int, Any]]) -> Iterator[Leaf]:
    """Walk the tree of the schema, which is written as a list, parents first."""
    pending: list[tuple[int, str, bool]] = []  # of each open group: children to come, its path, whether it is repeated
    for number, element in enumerate(elements):
        children = element.get(5, 0)
        _, parent, repeated = pending[-1] if pending else (0, "", False)
        path = f"{parent}.{element[4].decode()}" if parent else ("" if number == 0 else element[4].decode())
        repeated = repeated or element.get(3) == REPEATED
        if number and not children:
            yield Leaf(path, _width(element), repeated)
        if pending:
            left, *_ = pending[-1]
            pending[-1] = (left - 1, *pending[-1][1:])
        if children:
            pending.append((children, path, repeated))
        while pending and pending[-1][0] <= 0:
            pending.pop()


def _width(element: dict[int, Any]) -> int:
    kind = TYPES[_natural(element[1])]
    return _natural(element[2]) if kind == "FIXED_LEN_BYTE_ARRAY" else WIDTHS[kind]


def _row_group(group: dict[int, Any], leaves: int) -> RowGroup:
    columns = tuple(_column_chunk(column[3]) for column in group[1])
    if len(columns) != leaves:
        raise ThriftError
    return RowGroup(_natural(group[3]), columns)


def _column_chunk(fields: dict[int, Any]) -> ColumnChunk:
    start, dictionary = _natural(fields[9]), fields.get(11)
    if dictionary is not None and 0 < dictionary < start:
        start = dictionary
    return ColumnChunk(start, start + _natural(fields[7]), _natural(fields[5]))


def _natural(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ThriftError
    return number
