"""How many entries of a kind are kept one by one; summary and event log count alike, so that they agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

MOST_RECORDS = 10_000  # of a collection that are rejected, and that have the id of another
MOST_MITIGATIONS = 1_000
FEW = 10  # that a collection has, however many there are in others


@dataclass
class Quota:
    """So many for each group, such as a collection, and so many in all; a group always has a few."""

    each: int
    in_all: int
    at_least: int = 0
    _taken: Counter[Hashable] = field(default_factory=Counter)
    _total: int = 0

    def take(self, group: Hashable) -> bool:
        """Whether one more is kept by itself."""
        most = self.each if self._total < self.in_all else self.at_least
        if self._taken[group] >= most:
            return False
        self._taken[group] += 1
        self._total += 1
        return True

    def restart(self, group: Hashable) -> None:
        """Begin again with a group: what was kept of it is dropped."""
        self._total -= self._taken.pop(group, 0)


def records_quota() -> Quota:
    """Of rejected records, and of duplicate ids."""
    return Quota(MOST_RECORDS, 4 * MOST_RECORDS, FEW)


def mitigations_quota() -> Quota:
    """Of mitigations."""
    return Quota(MOST_MITIGATIONS, 4 * MOST_MITIGATIONS, FEW)
