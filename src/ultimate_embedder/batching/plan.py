"""Cut a window into batches: rows of similar length under a token budget.

A batch is a function of what is in the window, never of time, devices or workers: so the same texts meet the same
neighbours in every mode and every run, and vectors are reproducible also in half precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

BATCH_TOKENS = 16_384  # a batch this large keeps a card busy
MOST_BATCH_TOKENS = 131_072  # more gain nothing, and a window would be one batch
LEAST_BATCH_TOKENS = 2048
HOST_S_PER_LAYER = 0.4e-3  # to launch its kernels, by benchmarks/host_calls.py; cards share the host
CARD_EFFICIENCY = 0.4  # of the peak rate; assumed
MOST_PADDING = 1.015  # padded over real tokens
WINDOW_BATCHES = 8  # at least, of a window that is large enough: so several devices end together


@dataclass(frozen=True)
class Batch:
    """Rows of a window that one forward sees, longest first, and the length they are padded to."""

    rows: np.ndarray
    longest: int

    @property
    def padded_tokens(self) -> int:
        """Tokens including padding."""
        return len(self.rows) * self.longest

    def split(self, rows: int, lengths: np.ndarray) -> tuple[Batch, Batch | None]:
        """A part of at most `rows` rows, and the rest; the parts of a batch are about equally large.

        `lengths` are those of all rows of the window: the rest is padded to the longest of its own.
        """
        rows = max(1, rows)
        if rows >= len(self.rows):
            return self, None
        parts = -(-len(self.rows) // rows)
        first = -(-len(self.rows) // parts)
        return Batch(self.rows[:first], self.longest), Batch(self.rows[first:], int(lengths[self.rows[first]]))


@dataclass(frozen=True)
class BatchLimits:
    """How large batches may be where memory allows it."""

    budget_tokens: int
    fixed: bool
    """Whether each batch has the whole budget; else a small window is cut into several."""
    most_rows: int | None = None
    avoid_padding: bool = False
    padded_length: Callable[[int], int] = int
    """The tokens that rows are padded to, by the longest of them."""

    def cut(self, lengths: np.ndarray, keys: np.ndarray | None = None) -> list[Batch]:
        """The batches of a window whose rows have these lengths, and texts with these keys."""
        budget = self.budget_tokens if self.fixed else window_budget(lengths, self.budget_tokens)
        return plan_batches(
            lengths,
            budget,
            keys,
            self.most_rows,
            avoid_padding=self.avoid_padding,
            padded_length=self.padded_length,
        )


def card_batch_tokens(layers: int, layer_weights: int, card_flops: float) -> int:
    """Tokens of a batch that keep a card busy twice as long as the host takes to launch it: small models get more.

    A function of model and card, not of measured times: so that equal cards are given equal batches.
    """
    seconds_per_token = 2 * layer_weights / (card_flops * CARD_EFFICIENCY)
    needed = 2 * layers * HOST_S_PER_LAYER / seconds_per_token
    tokens = BATCH_TOKENS
    while tokens < min(needed, MOST_BATCH_TOKENS):
        tokens *= 2
    return tokens


def window_budget(lengths: np.ndarray, most_tokens: int = BATCH_TOKENS) -> int:
    """The token budget of a window's batches: `most_tokens`, less where that would give too few batches."""
    return int(min(most_tokens, max(LEAST_BATCH_TOKENS, int(lengths.sum()) // WINDOW_BATCHES)))


def plan_batches(
    lengths: np.ndarray,
    budget_tokens: int,
    keys: np.ndarray | None = None,
    most_rows: int | None = None,
    *,
    avoid_padding: bool = False,
    padded_length: Callable[[int], int] = int,
) -> list[Batch]:
    """Cover all rows with batches of at most `budget_tokens` padded tokens; a longer row goes alone.

    `padded_length` gives the tokens that rows are padded to, by the longest of them.

    `avoid_padding` ends a batch early, at half the budget at the least, where more rows would be mostly padding.

    Longest first: the worst batch fails early, and the allocator never has to grow later. Among rows of one length
    the key of the text decides, so that the order of the chunks does not.
    """
    ties = (np.arange(len(lengths)),) if keys is None else (keys[:, 1], keys[:, 0])
    order = np.lexsort((*ties, -lengths))
    batches = []
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        rows = max(1, budget_tokens // max(1, padded_length(longest)))
        rows = min(rows, most_rows) if most_rows else rows
        if avoid_padding:
            rows = _rows_with_little_padding(lengths[order[start : start + rows]])
        batches.append(Batch(order[start : start + rows], longest))
        start += rows
    return batches


def _rows_with_little_padding(lengths: np.ndarray) -> int:
    """The most rows that need little padding, but not less than half of them."""
    padded = lengths[0] * np.arange(1, len(lengths) + 1)
    little = np.flatnonzero(padded <= MOST_PADDING * np.cumsum(lengths))[-1] + 1
    return int(max(little, -(-len(lengths) // 2)))
