"""`upload.json`: what was uploaded where, and how far an interrupted upload got, so that it can be resumed."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ultimate_embedder.files import delete
from ultimate_embedder.output import CollectionOutput
from ultimate_embedder.state import Damaged, Fields, read_state, write_state

JOURNAL_EVERY_POINTS = 2048
MOST_UPLOADS = 20
"""Places that are remembered."""


@dataclass(frozen=True)
class UploadState:
    """So many points of a file are on a server."""

    url: str
    target: str
    sha256: str
    """Of the file."""
    points: int
    finished: str | None = None
    """When it was complete, in UTC; None if it was interrupted."""
    alias: str | None = None
    recreated: bool = False
    """Whether this upload has deleted an earlier collection of this name."""

    @property
    def place(self) -> tuple[str, str]:
        """Server and Qdrant collection."""
        return self.url, self.target


def read_uploads(folder: Path) -> tuple[UploadState, ...] | Damaged | None:
    """The last upload of a collection to each place, the latest last; None if there was none."""
    return read_state(CollectionOutput(folder).upload_state, _parse)


def drop_damaged_upload_state(folder: Path) -> str | None:
    """Delete the state if it is damaged, and say so."""
    found = read_uploads(folder)
    if not isinstance(found, Damaged):
        return None
    delete(found.path)
    return f"{found}; the next upload sends all points again"


class UploadJournal:
    """Records how many points of a file were uploaded to a place."""

    def __init__(self, folder: Path, url: str, target: str, checksum: str, alias: str | None = None) -> None:
        self._folder = folder
        self._path = CollectionOutput(folder).upload_state
        self._state = UploadState(url, target, checksum, 0, alias=alias)

    def interrupted(self) -> UploadState | None:
        """What an interrupted upload of the same file to the same place has recorded; None if there is nothing."""
        found = [each for each in self._recorded() if each.place == self._state.place]
        same = [each for each in found if each.sha256 == self._state.sha256 and each.finished is None]
        return same[0] if same else None

    def begin(self, points: int, *, recreated: bool) -> None:
        """Record that an upload has begun, or goes on, with these points on the server."""
        self._state = replace(self._state, points=points, recreated=recreated)
        self._write()

    def note(self, points: int, force: bool = False) -> None:
        """Record that the first `points` points are on the server."""
        if force or points - self._state.points >= JOURNAL_EVERY_POINTS:
            self._state = replace(self._state, points=points)
            self._write()

    def finish(self, points: int, deleted: str | None = None) -> None:
        """Record that all points were counted on the server. The next upload sends them all: it may have changed.

        `deleted` is a collection there that is gone; an alias is that of its last upload only.
        """
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self._state = replace(self._state, points=points, finished=now, recreated=False)
        others = [each for each in self._recorded() if each.place != (self._state.url, deleted)]
        self._store([replace(each, alias=None) if self._has_our_alias(each) else each for each in others])
        self._write()

    def _has_our_alias(self, other: UploadState) -> bool:
        return (other.url, other.alias) == (self._state.url, self._state.alias)

    def forget(self) -> None:
        """Drop the record of this place: the next upload starts from the first point."""
        self._store([each for each in self._recorded() if each.place != self._state.place])

    def _recorded(self) -> list[UploadState]:
        found = read_uploads(self._folder)
        return list(found) if isinstance(found, tuple) else []

    def _write(self) -> None:
        others = [each for each in self._recorded() if each.place != self._state.place]
        self._store([*others, self._state][-MOST_UPLOADS:])

    def _store(self, states: Iterable[UploadState]) -> None:
        uploads = [asdict(each) for each in states]
        if uploads:
            write_state(self._path, {"uploads": uploads})
        else:
            delete(self._path)


def _parse(fields: Fields) -> tuple[UploadState, ...]:
    if "uploads" not in fields:  # of an earlier version, which recorded only an interrupted upload
        return (
            UploadState(fields.text("url"), fields.text("target"), fields.sha256("sha256"), fields.count("points")),
        )
    return tuple(
        UploadState(
            each.text("url"),
            each.text("target"),
            each.sha256("sha256"),
            each.count("points"),
            each.text_or_none("finished"),
            each.text_or_none("alias"),
            each.flag("recreated"),
        )
        for each in fields.inner_list("uploads")
    )
