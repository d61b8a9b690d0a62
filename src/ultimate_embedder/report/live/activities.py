"""What is under way beside the passes, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from ultimate_embedder.report.live.recent import Recent, whole
from ultimate_embedder.report.live.rows import Activity
from ultimate_embedder.report.live.sentences import shown

SPAN_S = 30.0
MOST = 64  # at a time: names come from a file, which may be damaged

Key = tuple[str, str | None, str]
"""Kind, collection, and name of what is worked on."""


@dataclass
class _Work:
    words: str
    unit: str
    began: float
    done: int = 0
    before: int = 0
    total: int | None = None
    share: float = 0.0
    recent: Recent = field(default_factory=Recent)

    def move(self, done: int, total: int | None, at: float) -> None:
        added = max(0, whole(done) - self.done)
        self.recent.add(added, self.recent.ended or self.began, max(at, self.began))
        self.done = max(self.done, whole(done))
        self.total = self.total if total is None else whole(total)
        if self.total:
            self.share = max(self.share, min(1.0, self.done / self.total))


class Activities:
    """Begins, moves and ends them."""

    def __init__(self) -> None:
        self._work: dict[Key, _Work] = {}

    def begin(self, key: Key, words: str, at: float, unit: str = "", total: int | None = None, done: int = 0) -> None:
        """Something begins; the same again begins anew."""
        if key in self._work or len(self._work) < MOST:
            work = self._work[key] = _Work(words, unit, at, done=whole(done), before=whole(done))
            work.move(done, total, at)

    def move(self, key: Key, at: float, *, done: int | None = None, more: int = 0, total: int | None = None) -> None:
        """It is at `done` now, or has done so much more."""
        if work := self._work.get(key):
            work.move(work.done + whole(more) if done is None else done, total, at)

    def has(self, key: Key) -> bool:
        """Whether it has begun and not ended."""
        return key in self._work

    def end(self, key: Key) -> None:
        """It is over."""
        self._work.pop(key, None)

    def end_all(self, kind: str | None = None, collection: str | None = None) -> None:
        """Those of a kind or of a collection are over; without both, all."""
        everything = kind is None and collection is None
        over = [key for key in self._work if everything or key[0] == kind or (collection and key[1] == collection)]
        for key in over:
            del self._work[key]

    def rows(self, now: float) -> tuple[Activity, ...]:
        """All of them at this moment."""
        return tuple(_row(key, work, now) for key, work in self._work.items())


def _row(key: Key, work: _Work, now: float) -> Activity:
    rate = work.recent.rate(now, SPAN_S)
    left = max(0, work.total - work.done) if work.total is not None else None
    return Activity(
        kind=key[0],
        words=work.words,
        unit=work.unit,
        done=work.done,
        before=work.before,
        total=work.total,
        share=work.share if work.total else None,
        per_second=rate,
        eta_seconds=left / rate if left is not None and rate else None,
        seconds=max(0.0, now - work.began),
        collection=None if key[1] is None else shown(key[1]),
    )
