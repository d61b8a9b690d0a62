"""Cut a window into batches: rows of similar length under a token budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

MOST_PADDING = 1.015  # padded over real tokens


@dataclass(frozen=True)
class Batch:
    """Rows of a window that one forward sees, and the length they are padded to."""

    rows: np.ndarray
    longest: int

    @property
    def padded_tokens(self) -> int:
        """Tokens including padding."""
        return len(self.rows) * self.longest


class BatchCutter:
    """Cuts the rows of a window into batches, one at a time, as large as whoever asks can take.

    Longest first: the worst batch fails early, and the allocator never has to grow later.
    """

    def __init__(self, lengths: np.ndarray, enough_tokens: int) -> None:
        self._order = np.argsort(-lengths, kind="stable")
        self._lengths = lengths[self._order]
        self._enough_tokens = enough_tokens
        self._start = 0

    def cut(self, most_rows: Callable[[int], int]) -> Batch | None:
        """The next batch, at most `most_rows(longest)` rows, fewer where padding would waste much; None: all is cut."""
        if self._start == len(self._order):
            return None
        longest = int(self._lengths[self._start])
        rows = self._lengths[self._start : self._start + max(1, most_rows(longest))]
        count = self._little_padding(rows, longest)
        batch = Batch(self._order[self._start : self._start + count], longest)
        self._start += count
        return batch

    def _little_padding(self, lengths: np.ndarray, longest: int) -> int:
        """How many of the rows to take: all that pad little, but enough to keep the device busy."""
        padded = longest * np.arange(1, len(lengths) + 1)
        sparing = np.flatnonzero(padded <= MOST_PADDING * np.cumsum(lengths))[-1] + 1
        enough = -(-self._enough_tokens // max(1, longest))
        return int(max(sparing, min(len(lengths), enough)))


def plan_batches(lengths: np.ndarray, budget_tokens: int) -> list[Batch]:
    """Cover all rows with batches of at most `budget_tokens` padded tokens; a longer row goes alone."""
    cutter = BatchCutter(lengths, enough_tokens=budget_tokens)
    batches = []
    while batch := cutter.cut(lambda longest: budget_tokens // max(1, longest)):
        batches.append(batch)
    return batches
