"""What one device holds and does."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet

from ultimate_embedder.report.live.recent import Recent, whole
from ultimate_embedder.report.live.rows import DeviceRow
from ultimate_embedder.types import MemorySnapshot

Lessee = tuple[str | None, str]
"""Who leases a device: collection and model."""
SPAN_S = 30.0  # over which tokens per second and idle time are measured


class DeviceUse:
    """Adds up the events of a device."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.leased_by: dict[Lessee, str] = {}
        """The models, as they are shown."""
        self.lost: str | None = None
        self._ceiling_reason: str | None = None
        self._held: int | None = None
        self._ceiling: int | None = None
        self._peak: int | None = None
        self._tokens, self._busy, self._waited = Recent(), Recent(), Recent()

    def open(self, ceiling_bytes: int, reason: str | None) -> None:
        """It may be used, up to a ceiling."""
        self._ceiling, self._ceiling_reason = whole(ceiling_bytes), reason or self._ceiling_reason

    def read_memory(self, memory: MemorySnapshot, *, peak: bool = False) -> None:
        """Note the memory; with `peak`, also the most since it was last reset."""
        outside = whole(memory.external_bytes) + whole(memory.context_bytes)
        self._held = whole(memory.reserved_bytes) + outside
        self._ceiling = whole(memory.ceiling_bytes)
        most = whole(memory.peak_reserved_bytes) + outside if peak else 0
        self._peak = max(self._peak or 0, self._held, most)

    def work(self, tokens: int, busy: float, begin: float, end: float) -> None:
        """It has computed so many tokens from `begin` to `end`, busy for so many seconds: more with several workers."""
        self._tokens.add(whole(tokens), begin, end)
        self._busy.add(busy, begin, end)

    def wait(self, waited: float, begin: float, end: float) -> None:
        """It had nothing to do for so many seconds."""
        if waited:
            self._waited.add(waited, begin, end)

    def row(self, now: float, at_work: AbstractSet[Lessee]) -> DeviceRow:
        """The device at this moment; `at_work` are the passes that have something to do."""
        under_way = not at_work.isdisjoint(self.leased_by)
        return DeviceRow(
            name=self.name,
            held_bytes=self._held,
            ceiling_bytes=self._ceiling,
            ceiling_reason=self._ceiling_reason,
            peak_bytes=self._peak,
            tokens_per_second=self._tokens.rate(now, SPAN_S, SPAN_S if under_way else 0.0),
            idle_share=self._idle_share(now, under_way=under_way),
            models=tuple(dict.fromkeys(self.leased_by.values())),
            lost=self.lost,
        )

    def _idle_share(self, now: float, *, under_way: bool) -> float | None:
        """Each second counts by what is known of it; what a batch under way does is known when it ends."""
        if self._busy.began is None:
            return None
        end = self._busy.ended if under_way else now
        since = max(min(self._busy.began, self._waited.began or math.inf), end - SPAN_S)
        busy, waited = self._busy.slots(since), self._waited.slots(since)
        idle = 0.0
        for slot in range(math.floor(since), math.ceil(end)):
            known = busy.get(slot, 0.0) + waited.get(slot, 0.0)
            share = waited.get(slot, 0.0) / known if known else 1.0
            idle += share * (min(slot + 1, end) - max(slot, since))
        return idle / max(end - since, 1e-9)
