"""Mitigations and warnings: each is listed once and counted; of very many the first and the latest are kept."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from ultimate_embedder.events import Event
from ultimate_embedder.report.live.recent import LATEST
from ultimate_embedder.report.live.rows import Notice
from ultimate_embedder.report.live.sentences import shown

MOST = 200


class Notices:
    """Takes notices in the order in which they come."""

    def __init__(self) -> None:
        self._notices: dict[Hashable, Notice] = {}

    def add(
        self,
        key: Hashable,
        event: Event,
        *,
        kind: str,
        words: str,
        model: str | None = None,
        device: str | None = None,
        times: int = 1,
        until: float | None = None,
    ) -> None:
        """Add one, or count one that is there; the words are those of the first. A log may have added up several."""
        known, last = self._notices.get(key), event.timestamp
        if until is not None and abs(until) < LATEST:
            last = max(last, until)
        if known is not None:
            self._notices[key] = replace(known, times=known.times + times, last_at=max(known.last_at, last))
            return
        if len(self._notices) >= MOST:  # the first half tells how it began
            del self._notices[list(self._notices)[MOST // 2]]
        collection = None if event.collection is None else shown(event.collection)
        self._notices[key] = Notice(event.timestamp, kind, words, collection, model, device, times, last)

    def rows(self) -> tuple[Notice, ...]:
        """All that are kept, in order."""
        return tuple(self._notices.values())
