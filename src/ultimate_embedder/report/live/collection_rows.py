"""The collections of a run, and what has become of them."""

from __future__ import annotations

from typing import Any

from ultimate_embedder import events
from ultimate_embedder.report.live.recent import whole
from ultimate_embedder.report.live.rows import CollectionRow
from ultimate_embedder.report.live.sentences import shown

MOST_COLLECTIONS = 1000
GOOD = ("completed", "skipped_existing")
NEW: dict[str, Any] = {"status": None, "chunks": 0, "rejected": 0, "points": 0, "error": None}


class Collections:
    """Folds what happens to collections."""

    def __init__(self) -> None:
        self.total: int | None = None
        self.left_out = 0
        self._rows: dict[str | None, CollectionRow] = {}

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        match event:
            case events.CollectionsFound():
                self.total = whole(event.collections)
            case events.CollectionStarted():
                self._change(event, status=None)
            case events.ChunksLoaded():
                self._change(event, chunks=whole(event.loaded), rejected=whole(event.rejected))
            case events.ChunksSplit():
                known = self._rows.get(event.collection)
                more = max(0, whole(event.segments) - whole(event.chunks))
                self._change(event, chunks=(known.chunks if known else 0) + more)
            case events.VectorsFused():
                self._change(event, points=whole(event.points))
            case events.CollectionSkipped():
                self._change(event, chunks=whole(event.embedded), points=whole(event.embedded))
            case events.CollectionFinished():
                error = None if event.error is None else shown(event.error)
                self._change(event, status=str(event.status), error=error)
                if event.status in GOOD and len(self._rows) > MOST_COLLECTIONS:
                    del self._rows[event.collection]
                    self.left_out += 1
            case _:
                pass

    @property
    def statuses(self) -> set[str | None]:
        """Of all that are kept; None of those that are worked on."""
        return {row.status for row in self._rows.values()}

    def rows(self) -> tuple[CollectionRow, ...]:
        """All that are kept, in order."""
        return tuple(self._rows.values())

    def done(self) -> int:
        """How many have ended."""
        return sum(row.status is not None for row in self._rows.values()) + self.left_out

    def _change(self, event: events.Event, **changes: Any) -> None:
        known = self._rows.get(event.collection)
        if known is None and len(self._rows) > 2 * MOST_COLLECTIONS:
            self.left_out += 1
            return
        fields = {**NEW, **({key: getattr(known, key) for key in NEW} if known else {}), **changes}
        self._rows[event.collection] = CollectionRow(name=shown(event.collection), **fields)
