"""What is written to `events.jsonl` event by event, and what is added up: a log must not grow with the run.

The first batches of a pass are written one by one, and so are later ones that are special: the slowest of the run, and
the first that were reduced or recomputed. All others are added up until they are flushed. The same goes for windows,
rejected records, duplicate ids and mitigations. Sums are exact, whatever is added up.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import replace

from ultimate_embedder import events
from ultimate_embedder.report.quota import Quota, mitigations_quota, records_quota
from ultimate_embedder.report.rejections import RejectionGroups, as_group
from ultimate_embedder.report.roll_up import RolledUp, joined, key_of, rolled_up

FIRST_BATCHES = 200  # of a pass; also windows
SPECIAL_BATCHES = 50  # of a pass: reduced, or with rows that were recomputed or are unusable
BATCHES_IN_ALL = 2_000  # then a pass has only some
FEW_BATCHES = 8
SLOWEST = 8  # of the run
MANY_SLOWEST = 1_000  # where each is slower than the one before: from here on only those that are much slower
MUCH_SLOWER = 1.05
CAN_BE_ADDED_UP = (
    events.BatchEncoded,
    events.WindowTokenized,
    events.ChunkRejected,
    events.IdDuplicated,
    events.Mitigated,
)


class Condenser:
    """Takes events and gives those to write.

    What is pending comes before an event that begins or ends something; those that can be added up have no order.
    """

    def __init__(self) -> None:
        self._pending: dict[tuple[Hashable, ...], RolledUp] = {}
        self._batches = Quota(FIRST_BATCHES, BATCHES_IN_ALL, FEW_BATCHES)
        self._special = Quota(SPECIAL_BATCHES, BATCHES_IN_ALL)
        self._windows = Quota(FIRST_BATCHES, BATCHES_IN_ALL, FEW_BATCHES)
        self._rejected, self._duplicates, self._mitigations = records_quota(), records_quota(), mitigations_quota()
        self._reasons: dict[str | None, RejectionGroups] = {}
        self._slowest = _Slowest()

    @property
    def is_pending(self) -> bool:
        """Whether something was taken and not given."""
        return bool(self._pending)

    def take(self, event: events.Event) -> list[events.Event]:
        """What is to be written now."""
        if isinstance(event, events.CollectionStarted):  # a fresh process reads its records again
            for quota in (self._rejected, self._duplicates):
                quota.restart(event.collection)
            self._reasons.pop(event.collection, None)
        part = self._to_add_up(event)
        if part is None:
            return [event] if isinstance(event, CAN_BE_ADDED_UP) else [*self.flush(), event]
        key = key_of(part)
        known = self._pending.get(key)
        self._pending[key] = part if known is None else joined(known, part)
        return []

    def flush(self) -> list[events.Event]:
        """What was added up since it was last asked for."""
        pending = list(self._pending.values())
        self._pending.clear()
        return list(pending)

    def _to_add_up(self, event: events.Event) -> RolledUp | None:
        """The event in the form in which it is added up; None if it is written as it is."""
        match event:
            case events.BatchEncoded():
                return None if self._is_single(event) else rolled_up(event)
            case events.WindowTokenized():
                return None if self._windows.take((event.collection, event.model_pass)) else event
            case events.ChunkRejected():
                return self._rejected_record(event)
            case events.IdDuplicated():
                if self._duplicates.take(event.collection):
                    return None
                return events.IdsDuplicated(collection=event.collection, timestamp=event.timestamp, chunks=1)
            case events.Mitigated():
                return None if self._mitigations.take(event.collection) else replace(event, until=event.timestamp)
            case _:
                return None

    def _is_single(self, batch: events.BatchEncoded) -> bool:
        group = (batch.collection, batch.model_pass)
        slow = self._slowest.take(batch.forward_seconds)
        if self._batches.take(group) or slow:
            return True
        special = batch.rows < batch.planned_rows or batch.fp32_rows or batch.bad_rows
        return bool(special) and self._special.take(group)

    def _rejected_record(self, event: events.ChunkRejected) -> events.ChunksRejected | None:
        group = as_group(event.rejected)
        listed = self._reasons.setdefault(event.collection, RejectionGroups()).add(group)
        if self._rejected.take(event.collection):
            return None
        groups = (group,) if listed else ()
        return events.ChunksRejected(collection=event.collection, timestamp=event.timestamp, records=1, groups=groups)


class _Slowest:
    """Which batches are among the slowest so far."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._taken = 0

    def take(self, seconds: float) -> bool:
        """Whether a batch that took so long is among them."""
        if len(self._seconds) < SLOWEST:
            heapq.heappush(self._seconds, seconds)
            return True
        if seconds <= self._seconds[0] * (1.0 if self._taken < MANY_SLOWEST else MUCH_SLOWER):
            return False
        heapq.heapreplace(self._seconds, seconds)
        self._taken += 1
        return True
