"""`events.jsonl`: the events of a run, one per line. Its size is bounded, however long the run is.

What comes often is added up (`condense`) and written once a second. When that has become many lines, the file is
replaced by one in which they are added up further (`compaction`). So a reader that follows the file begins again
where it is another file (its inode), or has become shorter.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path

from ultimate_embedder.events import Event, RunStarted
from ultimate_embedder.files import open_itself
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.report.compaction import compact
from ultimate_embedder.report.condense import Condenser

FLUSH_S = 1.0
MOST_ADDED_UP = 10_000  # lines


class EventLog:
    """An event sink. The file is created by `RunStarted`, so a dry run or an invalid one writes none.

    With `append` the events follow those of the run before.
    """

    def __init__(self, path: Path, *, append: bool = False, most_added_up: int = MOST_ADDED_UP) -> None:
        self._path = path
        self._append = append
        self._file: FileIO | None = None
        self._condenser = Condenser()
        self._lock = OrderedLock("event log", Rank.EVENT_LOG)
        self._closed = threading.Event()
        self._added_up = 0
        self._most_added_up = most_added_up
        self.problem: str | None = None
        """Why events are missing from the file, or None."""

    def __call__(self, event: Event) -> None:
        """Take one event."""
        with self._lock, self._noting_problems():
            if isinstance(event, RunStarted) and self._file is None:
                self._begin()
            if self._file is not None:
                *added_up, last = self._condenser.take(event) or (None,)
                self._write([*added_up, *([] if last is None else [last])], len(added_up))

    def close(self) -> None:
        """Write what is pending, and close the file, if it was ever opened."""
        self._closed.set()
        self._flush()
        with self._lock:
            self._close()

    def _begin(self) -> None:
        if self._path.is_symlink():
            self._path.unlink()
        self._open(os.O_APPEND if self._append else os.O_TRUNC)
        threading.Thread(target=self._flush_regularly, name="event-log", daemon=True).start()

    def _flush_regularly(self) -> None:
        """Let readers see what goes on, also while the next event is long in coming."""
        while not self._closed.wait(FLUSH_S):
            self._flush()

    def _flush(self) -> None:
        with self._lock, self._noting_problems():
            added_up = self._condenser.flush()
            self._write(added_up, len(added_up))

    def _write(self, events: Sequence[Event], added_up: int) -> None:
        if self._file is None or not events:
            return
        self._file.write(b"".join(event.as_line() for event in events))
        self._added_up += added_up
        if self._added_up > self._most_added_up:
            self._compact()

    def _compact(self) -> None:
        """Make the file shorter; where that fails, it goes on as it is."""
        self._close()
        with contextlib.suppress(OSError):
            self._added_up = compact(self._path, self._most_added_up)
        # what cannot be added up, such as that of many small collections, must not be tried again and again
        self._most_added_up = max(self._most_added_up, 2 * self._added_up)
        self._open(os.O_APPEND)

    def _open(self, how: int) -> None:
        self._file = FileIO(open_itself(self._path, os.O_WRONLY | how), "wb")

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextlib.contextmanager
    def _noting_problems(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # a full disk: the store will fail too and raise the error
            self.problem = f"{self._path.name} is incomplete: {error.strerror}"
            self._close()
