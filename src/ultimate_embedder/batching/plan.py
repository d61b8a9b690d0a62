"""Cut a window into batches: rows of similar length under a token budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Batch:
    """Rows of a window that one forward sees, and the length they are padded to."""

    rows: np.ndarray
    longest: int

    @property
    def padded_tokens(self) -> int:
        """Tokens including padding."""
        return len(self.rows) * self.longest


def plan_batches(lengths: np.ndarray, budget_tokens: int) -> list[Batch]:
    """Cover all rows with batches of at most `budget_tokens` padded tokens; a longer row goes alone.

    Longest first: the worst batch fails early, and the allocator never has to grow later.
    """
    order = np.argsort(-lengths, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        rows = max(1, budget_tokens // max(1, longest))
        batches.append(Batch(order[start : start + rows], longest))
        start += rows
    return batches
