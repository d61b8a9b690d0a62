"""`events.jsonl`: every event of a run, one per line."""

from __future__ import annotations

import json
from io import FileIO
from pathlib import Path

from ultimate_embedder.events import Event, RunStarted


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
                self._file = FileIO(self._path, "ab" if self._append else "wb")
            if self._file is not None:
                self._file.write(json.dumps(event.as_dict(), ensure_ascii=False).encode() + b"\n")
        except OSError as error:  # a full disk: the store will fail too and raise the error
            self.problem = f"{self._path.name} is incomplete: {error.strerror}"
            self.close()

    def close(self) -> None:
        """Close the file, if it was ever opened."""
        if self._file is not None:
            self._file.close()
            self._file = None
