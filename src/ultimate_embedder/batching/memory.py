"""How many bytes a batch needs: predicted before the first forward, corrected by every measured one.

At a fixed length the peak is linear in rows; across lengths its slope is a sum of a linear term (hidden states)
and a quadratic one (masks, unfused attention). So two predictions at each power of two give the whole surface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

FEW_ROWS, MANY_ROWS = 4, 20  # the two points of the line through rows
SHORTEST = 8
EXPECTED_RESERVE_RATIO = 1.2  # reserved / allocated before anything was measured: blocks are cut from larger segments
MOST_RESERVE_RATIO = 2.0
NEW_WEIGHT = 0.5  # of the newest measurement against all earlier ones

Layout = Literal["padded", "uniform", "packed"]
"""Rows padded to the longest; rows of one length, where models often do without a mask; rows laid end to end."""
PredictPeak = Callable[[int, int], int]


@dataclass(frozen=True)
class _Line:
    """Peak bytes at one length: base + per_row x rows."""

    base: float
    per_row: float


class MemoryModel:
    """Predicts the allocated bytes of a forward, and from these what the allocator will have to reserve."""

    def __init__(self, predict_peak: PredictPeak) -> None:
        self.predict_peak = predict_peak
        self._lines: dict[int, _Line] = {}
        self._corrections: dict[tuple[Layout, int], float] = {}  # by power of two
        self._reserve_ratio = EXPECTED_RESERVE_RATIO
        self._reserve_measured = False

    @property
    def reserve_ratio(self) -> float:
        """Reserved over allocated bytes, as far as is known."""
        return self._reserve_ratio

    def allocated_bytes(self, rows: float, length: int, layout: Layout = "padded") -> int:
        """What a forward of `rows` x `length` tokens allocates at its peak, beyond the weights."""
        return int(self._raw_bytes(rows, length) * self._correction(length, layout))

    def observe(self, rows: float, length: int, layout: Layout, allocated_bytes: int) -> None:
        """Learn from a measured peak."""
        measured = allocated_bytes / self._raw_bytes(rows, length)
        key = (layout, length_bucket(length))
        known = self._corrections.get(key)
        self._corrections[key] = measured if known is None else known + NEW_WEIGHT * (measured - known)

    def observe_reserved(self, allocated_bytes: int, reserved_bytes: int) -> None:
        """Learn from a forward that made the allocator reserve more; both with the weights."""
        measured = min(reserved_bytes / max(allocated_bytes, 1), MOST_RESERVE_RATIO)
        weight = NEW_WEIGHT if self._reserve_measured else 1.0
        self._reserve_ratio += weight * (measured - self._reserve_ratio)
        self._reserve_measured = True

    def most_rows(self, length: int, allowed_bytes: float, layout: Layout = "padded") -> int:
        """The most rows of `length` tokens whose forward stays within `allowed_bytes`; at least 1."""
        line, bucket = self._line(length), length_bucket(length)
        correction = self._correction(length, layout)
        if (layout, bucket) not in self._corrections:
            correction = max(1.0, correction)  # what other lengths spare is not counted on
        # the rows may turn out to be all of one length
        correction = max(correction, self._corrections.get(("uniform", bucket), 0.0))
        rows = (allowed_bytes / correction - line.base) / max(line.per_row, 1.0)
        return max(1, int(rows))

    def _raw_bytes(self, rows: float, length: int) -> float:
        line = self._line(length)
        return max(1.0, line.base + line.per_row * rows)

    def _correction(self, length: int, layout: Layout) -> float:
        """As measured at that power of two, else at the nearest that was."""
        bucket = length_bucket(length)
        known = [each for kind, each in self._corrections if kind == layout]
        nearest = min(known, key=lambda each: abs(each.bit_length() - bucket.bit_length()), default=None)
        return 1.0 if nearest is None else self._corrections[layout, nearest]

    def _line(self, length: int) -> _Line:
        high = length_bucket(length)
        if length == high or high == SHORTEST:
            return self._edge(high)
        low = high // 2
        below, above = self._edge(low), self._edge(high)
        # slope(L) = linear x L + quadratic x L^2, through both edges
        quadratic = (above.per_row / high - below.per_row / low) / (high - low)
        linear = below.per_row / low - quadratic * low
        share = (length - low) / (high - low)
        base = below.base + share * (above.base - below.base)
        return _Line(base, linear * length + quadratic * length * length)

    def _edge(self, length: int) -> _Line:
        if length not in self._lines:
            few, many = self.predict_peak(FEW_ROWS, length), self.predict_peak(MANY_ROWS, length)
            per_row = (many - few) / (MANY_ROWS - FEW_ROWS)
            self._lines[length] = _Line(few - per_row * FEW_ROWS, per_row)
        return self._lines[length]


def points_to_predict(lengths: Iterable[int]) -> list[tuple[int, int]]:
    """The points, as (rows, length), on which predictions for rows of these lengths rest; the longest first."""
    edges = {edge for length in lengths for edge in (length_bucket(length), max(SHORTEST, length_bucket(length) // 2))}
    return [(rows, edge) for edge in sorted(edges, reverse=True) for rows in (FEW_ROWS, MANY_ROWS)]


def length_bucket(length: int) -> int:
    """The power of two at or above `length`: what is learned is learned by these."""
    return max(SHORTEST, 1 << (length - 1).bit_length())
