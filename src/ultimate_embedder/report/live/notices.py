"""Mitigations and warnings: each is listed once and counted; of very many the first and the latest are kept."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from ultimate_embedder.events import CompanionPlaced, Event, Mitigated, NodeRefused, Warned
from ultimate_embedder.report.live.recent import LATEST, whole
from ultimate_embedder.report.live.rows import Notice
from ultimate_embedder.report.live.sentences import mitigation_words, shown

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


class Mitigations(Notices):
    """Folds mitigations, each kind once per model and device."""

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if not isinstance(event, Mitigated | CompanionPlaced):
            return
        details = event.details
        model, device = details.get("model"), details.get("device", details.get("after"))
        self.add(
            (event.collection, shown(event.kind), shown(model), shown(device)),
            event,
            kind=shown(event.kind),
            words=mitigation_words(event),
            model=None if model is None else shown(model),
            device=shown(device) if isinstance(device, str) else None,
            times=max(1, whole(event.times)) if isinstance(event, Mitigated) else 1,
            until=event.until if isinstance(event, Mitigated) else None,
        )


class Warnings(Notices):
    """Folds warnings."""

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, NodeRefused):
            words = shown(f"{event.node} ({event.address}) was refused: {event.reason}")
            self.add((None, words), event, kind="warning", words=words)
        if isinstance(event, Warned):
            words = shown(event.message)
            self.add((event.collection, words), event, kind="warning", words=words)
