"""How much memory the rows of a Parquet file take, from the headers of its pages.

Sizes in the file's metadata may be wrong, and a few bytes may stand for gigabytes. The header of a page is what the
reader itself allocates memory by, and a page of another size than its header says is an error: so these are read first.
Headers are structs of Thrift's compact protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

FIRST_BYTES = 1 << 16  # of a header; more where it has long statistics
LARGEST_HEADER = 16 << 20  # as in Arrow
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
DELTA_BYTE_ARRAY = 7
LEVEL_BYTES = 4  # of definition and repetition
INDEX_BYTES = 4
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 0}
SMALL_DICTIONARY = 4096  # bytes: expanding it is no danger


class PageHeaderError(ValueError):
    """The header of a page is damaged."""


@dataclass(frozen=True)
class ColumnPages:
    """The pages of one column of a row group: sizes in memory, and numbers of values."""

    path: str
    sizes: np.ndarray
    values: np.ndarray
    dictionary_bytes: int
    repeated: bool
    """Whether a row may have any number of values."""
    width: int
    """Bytes of a value, besides those in the pages."""

    @property
    def as_dictionary(self) -> bool:
        """Whether its texts are to be read as references to a dictionary: one may stand in many rows."""
        return self.width == 0 and self.dictionary_bytes > SMALL_DICTIONARY

    @property
    def value_bytes(self) -> int:
        """The most that a value takes besides its share of a page."""
        expanded = 0 if self.width or self.as_dictionary else self.dictionary_bytes
        return self.width + expanded + INDEX_BYTES + LEVEL_BYTES

    def fixed_bytes(self) -> int:
        """What it takes however few rows are read at a time."""
        pages = int(self.sizes.max(initial=0)) + self.dictionary_bytes
        return pages + (int(self.values.sum()) * self.value_bytes if self.repeated else 0)

    def bytes_of_rows(self, rows: int) -> int:
        """The most that so many consecutive rows take, where each has one value: all pages that they are in."""
        if self.repeated or not len(self.sizes):
            return 0
        ends = np.cumsum(self.values)
        last = np.minimum(np.searchsorted(ends, ends + rows), len(ends) - 1)
        sizes = np.concatenate([[0], np.cumsum(self.sizes)])
        return int((sizes[last + 1] - sizes[:-1]).max()) + rows * self.value_bytes


def column_pages(file: BinaryIO, chunk: Any, column: Any) -> ColumnPages:
    """Read the page headers of a column chunk (its metadata and schema)."""
    sizes, values, dictionary_bytes, delta = [], [], 0, False
    for header in _headers(file, chunk):
        kind, size = header.get(1), header.get(2, 0)
        described = header.get({DATA_PAGE: 5, DATA_PAGE_V2: 8}.get(kind, -1), {})
        if kind == DICTIONARY_PAGE:
            dictionary_bytes = max(dictionary_bytes, size)
        elif described:
            sizes.append(size)
            values.append(described.get(1, 0))
            delta |= described.get(2 if kind == DATA_PAGE else 4) == DELTA_BYTE_ARRAY
    width = WIDTHS.get(column.physical_type, max(0, column.length))
    # each value may repeat the one before it, which may be as long as the page
    width += max(sizes, default=0) if delta else 0
    return ColumnPages(
        path=column.path,
        sizes=np.array(sizes, np.int64),
        values=np.array(values, np.int64),
        dictionary_bytes=dictionary_bytes,
        repeated=column.max_repetition_level > 0,
        width=width,
    )


def _headers(file: BinaryIO, chunk: Any) -> Any:
    """Yield the page headers of a column chunk, in the order in which the reader sees them."""
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None and 0 < chunk.dictionary_page_offset < at:
        at = chunk.dictionary_page_offset
    end = at + chunk.total_compressed_size
    seen = 0
    while seen < chunk.num_values and at < end:
        header, length = _read_header(file, at)
        sizes = (header.get(2, 0), header.get(3, 0))
        described = header.get(5) or header.get(8) or {}
        if not all(isinstance(size, int) and size >= 0 for size in (*sizes, described.get(1, 0))):
            raise PageHeaderError("a page header is damaged")
        seen += described.get(1, 0)
        at += length + sizes[1]
        yield header


def _read_header(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    length = FIRST_BYTES
    while True:
        file.seek(at)
        reader = _Thrift(file.read(length))
        try:
            return reader.struct(), reader.at
        except IndexError:
            if len(reader.data) < length or length >= LARGEST_HEADER:
                raise PageHeaderError("a page header is damaged") from None
            length *= 4


class _Thrift:
    """Reads a struct of Thrift's compact protocol: integers and structs by field number; others are skipped."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        if depth > 8:
            raise PageHeaderError("a page header is damaged")
        while kind := self._byte():
            number = number + (kind >> 4) if kind >> 4 else self._zigzag()
            fields[number] = self._value(kind & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):  # a boolean is its type
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._varint())
        if kind in (9, 10):
            return self._list(depth)
        if kind == 12:
            return self.struct(depth + 1)
        raise PageHeaderError("a page header is damaged")

    def _list(self, depth: int) -> None:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        for _ in range(count):
            if head & 15 in (1, 2):
                self._skip(1)
            else:
                self._value(head & 15, depth + 1)

    def _byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise PageHeaderError("a page header is damaged")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, length: int) -> None:
        if self.at + length > len(self.data):
            raise IndexError
        self.at += length
