"""Rows of texts that are encoded: of a chunk table, or a list in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from ultimate_embedder.chunks.table import TableRows, text_key


class TextRows(Protocol):
    """Texts by row, each with the key under which its vector is found."""

    keys: np.ndarray

    def __len__(self) -> int: ...

    def distinct_texts(self) -> int:
        """The number of distinct texts."""
        ...

    def blocks(self, rows: np.ndarray | None = None) -> Iterator[TableRows]:
        """Yield the rows block by block; with `rows` (a mask), blocks without a marked row may be skipped."""
        ...


class TextList:
    """Texts in memory, without ids and records."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.keys = np.array([text_key(text) for text in texts], np.uint64).reshape(-1, 2)
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def distinct_texts(self) -> int:
        """The number of distinct texts."""
        return len(np.unique(self.keys, axis=0))

    def blocks(self, rows: np.ndarray | None = None) -> Iterator[TableRows]:
        """Yield one block: the texts are in memory anyway."""
        yield TableRows(start=0, ids=[], texts=list(self._texts), records=[], files=[], positions=[])
