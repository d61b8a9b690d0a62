"""How much memory the rows of a Parquet file take, from the headers of its pages.

Sizes in the file's metadata may be wrong, and a few bytes may stand for gigabytes. The header of a page is what the
reader itself allocates memory by, and a page of another size than its header says is an error: so these are read first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from ultimate_embedder.chunks.formats.parquet_footer import ColumnChunk, Leaf
from ultimate_embedder.chunks.formats.thrift import ThriftError, ThriftReader

FIRST_BYTES = 1 << 16  # of a header; more where it has long statistics
LARGEST_HEADER = 16 << 20  # as in Arrow
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
DELTA_BYTE_ARRAY = 7
LEVEL_BYTES = 4  # of definition and repetition
INDEX_BYTES = 4
SMALL_DICTIONARY = 4096  # bytes: expanding it is no danger


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


def column_pages(file: BinaryIO, chunk: ColumnChunk, leaf: Leaf) -> ColumnPages:
    """Read the headers of all pages of a column. Raises ThriftError."""
    sizes, values, dictionary_bytes, delta = [], [], 0, False
    for page in _pages(file, chunk):
        if page.kind == DICTIONARY_PAGE:
            dictionary_bytes = max(dictionary_bytes, page.size)
        else:
            sizes.append(page.size)
            values.append(page.values)
            delta |= page.encoding == DELTA_BYTE_ARRAY
    # in that encoding each value may repeat the one before it, which may be as long as the page
    width = leaf.width + (max(sizes, default=0) if delta else 0)
    return ColumnPages(
        path=leaf.path,
        sizes=np.array(sizes, np.int64),
        values=np.array(values, np.int64),
        dictionary_bytes=dictionary_bytes,
        repeated=leaf.repeated,
        width=width,
    )


@dataclass(frozen=True)
class _Page:
    kind: int
    size: int
    """In memory."""
    stored_bytes: int
    values: int = 0
    encoding: int = 0


def _pages(file: BinaryIO, chunk: ColumnChunk) -> Iterator[_Page]:
    """Yield the pages of a column chunk, in the order in which the reader sees them, and as far as it reads them."""
    at, seen = chunk.start, 0
    while seen < chunk.values and at < chunk.stop:
        page, header_bytes = _read_page(file, at)
        seen += page.values
        at += header_bytes + page.stored_bytes
        yield page


def _read_page(file: BinaryIO, at: int) -> tuple[_Page, int]:
    length = FIRST_BYTES
    while True:
        file.seek(at)
        reader = ThriftReader(file.read(length))
        try:
            return _page(reader.struct()), reader.at
        except IndexError:
            if len(reader.data) < length or length >= LARGEST_HEADER:
                raise ThriftError from None
            length *= 4


def _page(fields: dict[int, Any]) -> _Page:
    kind = fields.get(1)
    described: dict[int, Any] = fields.get(5, {}) if kind == DATA_PAGE else fields.get(8, {})
    encoding = described.get(2 if kind == DATA_PAGE else 4, 0)
    numbers: list[Any] = [kind, fields.get(2), fields.get(3), described.get(1, 0), encoding]
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ThriftError
    return _Page(*numbers)
