"""Amounts over the last minutes, by the clock of events: for rates that follow what a run does now."""

from __future__ import annotations

import math

KEPT_SECONDS = 300
LATEST = 1e11
"""The latest time that is taken for one, in seconds: logs come from outside, and may say anything."""
MOST = 1e18


def amount(value: float) -> float:
    """A number from an event as an amount: finite, not negative, and not absurd."""
    return min(float(value), MOST) if 0 < value < math.inf else 0.0


def whole(value: int) -> int:
    """A count from an event: not negative, and small enough for everything that reads it."""
    return min(max(0, value), 1 << 62)


class Recent:
    """Adds up amounts in slots of one second, and forgets those that are older than some minutes."""

    def __init__(self) -> None:
        self._slots: dict[int, float] = {}
        self.began: float | None = None
        self.ended = 0.0

    def add(self, given: float, begin: float, end: float) -> None:
        """Add an amount, spread evenly over the time from `begin` to `end`."""
        begin, end = min(begin, end), end
        self.began = begin if self.began is None else min(self.began, begin)
        self.ended = max(self.ended, end)
        per_second = given / max(end - begin, 1e-9)
        begin = max(begin, end - KEPT_SECONDS)
        for slot in range(math.floor(begin), math.floor(end) + 1):
            inside = min(end, slot + 1) - max(begin, slot)
            part = given if end - begin < 1e-9 else per_second * max(0.0, inside)
            self._slots[slot] = self._slots.get(slot, 0.0) + part
        if len(self._slots) > 2 * KEPT_SECONDS:
            oldest = math.floor(self.ended) - KEPT_SECONDS
            self._slots = {slot: part for slot, part in self._slots.items() if slot >= oldest}

    def rate(self, now: float, span: float, patience: float = 0.0) -> float:
        """Per second, over the last `span` seconds, or since the first amount if that is less.

        Time without any amount counts after `patience`: until then the next one may be under way.
        """
        if self.began is None:
            return 0.0
        now = self.ended if now - self.ended <= patience else now
        since = max(self.began, now - span)
        return self.total(since) / max(now - since, 1e-3)

    def total(self, since: float) -> float:
        """The sum from a time on."""
        if self.began is None:
            return 0.0
        first = math.floor(max(since, self.began))
        inside = first + 1 - since if since > self.began else 1.0  # of the first slot
        return sum(part if slot > first else part * inside for slot, part in self._slots.items() if slot >= first)

    def slots(self, since: float) -> dict[int, float]:
        """The sums by second, from a time on."""
        return {slot: part for slot, part in self._slots.items() if slot + 1 > since}
