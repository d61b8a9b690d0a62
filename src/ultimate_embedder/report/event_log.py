"""`events.jsonl`: every event of a run, one per line."""

from __future__ import annotations

import json
import os
from io import FileIO
from pathlib import Path

from ultimate_embedder.events import Event, RunStarted
from ultimate_embedder.files import open_itself


class EventLog:
    """Writes each event as a line. The file is created by `RunStarted`, so a dry run or an invalid one writes none.

    With `append` the events follow those of the run before.
    """

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self._path = path
        self._append = append
        self._file: FileIO | None = None
        self.problem: str | None = None
        """Why events are missing from the file, or None."""

    def __call__(self, event: Event) -> None:
        """Take one event."""
        try:
            if isinstance(event, RunStarted):
                self._file = self._open()
            if self._file is not None:
                self._file.write(json.dumps(event.as_dict(), ensure_ascii=False).encode() + b"\n")
        except OSError as error:  # a full disk: the store will fail too and raise the error
            self.problem = f"{self._path.name} is incomplete: {error.strerror}"
            self.close()

    def _open(self) -> FileIO:
        if self._path.is_symlink():
            self._path.unlink()
        return FileIO(open_itself(self._path, os.O_WRONLY | (os.O_APPEND if self._append else os.O_TRUNC)), "wb")

    def close(self) -> None:
        """Close the file, if it was ever opened."""
        if self._file is not None:
            self._file.close()
            self._file = None
