"""`events.jsonl`: every event as it happens."""

from __future__ import annotations

import json
from io import FileIO
from pathlib import Path

from ultimate_embedder.events import Event, RunStarted


class EventLog:
    """Writes each event as a line. The file begins with the run, so a dry run or a refused one leaves none.

    With `append` the events follow those of the run before.
    """

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self._path = path
        self._append = append
        self._file: FileIO | None = None
        self.problem: str | None = None
        """Why events are missing, if any are."""

    def __call__(self, event: Event) -> None:
        """Take one event."""
        try:
            if isinstance(event, RunStarted):
                self._file = FileIO(self._path, "ab" if self._append else "wb")
            if self._file is not None:
                self._file.write(json.dumps(event.as_dict(), ensure_ascii=False).encode() + b"\n")
        except OSError as error:  # a full disk: what matters will fail too, and say so
            self.problem = f"{self._path.name} is incomplete: {error.strerror}"
            self.close()

    def close(self) -> None:
        """Close the file, if it was ever opened."""
        if self._file is not None:
            self._file.close()
            self._file = None
