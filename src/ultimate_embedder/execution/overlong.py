"""How many tokens the texts of a pass have beyond the limit, and which of them have most."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.chunks import TextRows
from ultimate_embedder.execution.windows import TableTexts, tokenize_windows
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import Encoder
from ultimate_embedder.planning import Rows
from ultimate_embedder.types import TruncatedText

MOST_LISTED = 10


@dataclass(frozen=True, order=True)
class LongText:
    """A text beyond the token limit, by its key."""

    tokens_over: int
    tokens: int
    key: tuple[int, int]


class OverlongTexts:
    """Counts the tokens of texts beyond the limit, and keeps the longest; may be used from any thread."""

    def __init__(self) -> None:
        self.tokens = 0
        """Of these texts, also within the limit."""
        self.tokens_over = 0
        self.longest_tokens = 0
        self._longest: list[LongText] = []
        self._lock = OrderedLock("overlong texts", Rank.COUNTS)

    def add(self, keys: np.ndarray, tokens: np.ndarray, over: np.ndarray) -> None:
        """Count those of some texts; `over` are the tokens of each beyond the limit."""
        with self._lock:
            for row in np.flatnonzero(over):
                text = LongText(int(over[row]), int(tokens[row]), (int(keys[row, 0]), int(keys[row, 1])))
                self.tokens += text.tokens
                self.tokens_over += text.tokens_over
                self.longest_tokens = max(self.longest_tokens, text.tokens)
                heapq.heappush(self._longest, text)
                if len(self._longest) > MOST_LISTED:
                    heapq.heappop(self._longest)

    @property
    def longest(self) -> list[LongText]:
        """Those that have most tokens beyond the limit, the longest first."""
        return sorted(self._longest, reverse=True)


def count_stored(texts: TableTexts, rows: Rows, encoder: Encoder, found: OverlongTexts) -> None:
    """Count texts beyond the limit that an earlier run has encoded: only their tokens are not stored."""
    for window in tokenize_windows(texts.read(rows), encoder):
        found.add(window.keys, window.texts.text_tokens, window.texts.over)


def find_texts(table: TextRows, texts: Sequence[LongText]) -> tuple[TruncatedText, ...]:
    """The first chunk that has each of these texts; texts in memory have no ids, and none is named."""
    row_of: dict[int, LongText] = {}
    for text in texts:
        rows = np.flatnonzero((table.keys == np.array(text.key, np.uint64)).all(axis=1))
        row_of |= {int(rows[0]): text} if len(rows) else {}
    wanted = np.zeros(len(table), bool)
    wanted[list(row_of)] = True
    found = []
    for block in table.blocks(wanted):
        for row, (chunk_id, file, position) in enumerate(
            zip(block.ids, block.files, block.positions, strict=True), block.start
        ):
            if long := row_of.get(row):
                found.append(TruncatedText(chunk_id, file, position, long.tokens, long.tokens_over))
    return tuple(sorted(found, key=lambda each: -each.tokens_lost))
