"""`upload.json`: how far an upload got, so that an interrupted one can be resumed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ultimate_embedder.files import delete
from ultimate_embedder.output import CollectionOutput
from ultimate_embedder.state import Damaged, Fields, read_state, write_state

JOURNAL_EVERY_POINTS = 2048


@dataclass(frozen=True)
class UploadState:
    """So many points of a file are on a server."""

    url: str
    target: str
    sha256: str
    """Of the file."""
    points: int


def read_upload_state(folder: Path) -> UploadState | Damaged | None:
    """How far the last upload of a collection got; None if it is complete, or none was begun."""
    return read_state(CollectionOutput(folder).upload_state, _parse)


def drop_damaged_upload_state(folder: Path) -> str | None:
    """Delete the state if it is damaged, and say so."""
    found = read_upload_state(folder)
    if not isinstance(found, Damaged):
        return None
    delete(found.path)
    return f"{found}; the next upload sends all points again"


class UploadJournal:
    """Records how many points of a file were uploaded."""

    def __init__(self, folder: Path, url: str, target: str, checksum: str) -> None:
        self._folder = folder
        self._path = CollectionOutput(folder).upload_state
        self._identity = {"url": url, "target": target, "sha256": checksum}
        self._noted = 0

    def uploaded(self) -> int:
        """The number of points already uploaded; 0 if the journal is damaged, or of another file or target."""
        found = read_upload_state(self._folder)
        if not isinstance(found, UploadState):
            return 0
        same = {"url": found.url, "target": found.target, "sha256": found.sha256} == self._identity
        return found.points if same else 0

    def note(self, points: int, force: bool = False) -> None:
        """Record that the first `points` points are on the server."""
        if force or points - self._noted >= JOURNAL_EVERY_POINTS:
            write_state(self._path, {**self._identity, "points": points})
            self._noted = points

    def forget(self) -> None:
        """Delete the journal: the next upload starts from the first point."""
        delete(self._path)


def _parse(fields: Fields) -> UploadState:
    return UploadState(fields.text("url"), fields.text("target"), fields.sha256("sha256"), fields.count("points"))
