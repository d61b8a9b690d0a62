"""`events.jsonl`: every event as it happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

from ultimate_embedder.events import Event, RunStarted


class EventLog:
    """Writes each event as a line. The file begins with the run, so a dry run or a refused one leaves none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, RunStarted):
            self._file = open(self._path, "w", encoding="utf-8")  # noqa: SIM115 - closed by close()
        if self._file is not None:
            self._file.write(json.dumps(event.as_dict(), ensure_ascii=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file, if it was ever opened."""
        if self._file is not None:
            self._file.close()
