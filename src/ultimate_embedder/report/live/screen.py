"""Where a run is shown: a screen draws views at intervals, and says lines above them."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from ultimate_embedder import events
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.report.live.rows import RunView
from ultimate_embedder.report.live.state import RunState


class Screen(Protocol):
    """Shows views of a run, and lines."""

    every_s: float | None
    """Seconds between two views; None if it shows none."""

    def open(self) -> None:
        """Something will be shown; called by the thread that has begun the run."""

    def draw(self, view: RunView) -> None:
        """Show this in the place of the view before."""

    def begin(self, line: str) -> None:
        """Something has begun whose progress is in the view."""

    def end(self, line: str) -> None:
        """It has ended: the line stays, as it is not in the view any more."""

    def say(self, line: str) -> None:
        """Add a line that stays."""

    def close(self) -> None:
        """Leave everything as it was, without the view and with the lines."""


class NoScreen:
    """Shows nothing."""

    every_s: float | None = None

    def open(self) -> None:
        """Nothing."""

    def draw(self, view: RunView) -> None:
        """Nothing."""

    def begin(self, line: str) -> None:
        """Nothing."""

    def end(self, line: str) -> None:
        """Nothing."""

    def say(self, line: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class LiveView:
    """Folds events, and lets a screen draw the state on a thread of its own: an event costs no more than its fold."""

    def __init__(self, screen: Screen, clock: Callable[[], float] = time.time) -> None:
        self.screen: Screen = screen
        self._clock = clock
        self._state = RunState()
        self._lock = OrderedLock("live view", Rank.LIVE_VIEW)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, event: events.Event) -> None:
        """Take one event."""
        with self._lock:
            self._state(event)
        if self._thread is None and self.screen.every_s is not None and not self._over.is_set():
            self._begin()

    def view(self) -> RunView:
        """The run at this moment."""
        with self._lock:
            return self._state.view(self._clock())

    def draw(self) -> None:
        """Show the run as it is now."""
        with self.unharmed():
            self.screen.draw(self.view())

    @contextlib.contextmanager
    def unharmed(self) -> Iterator[None]:
        """Ignore a stream that cannot be written to any more: it must not stop the run."""
        try:
            yield
        except (OSError, ValueError):  # a closed pipe, a full disk, a closed file
            self.screen = NoScreen()

    def close(self) -> None:
        """Draw no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self.draw()
        with self.unharmed():
            self.screen.close()

    def _begin(self) -> None:
        with self.unharmed():
            self.screen.open()
        # with the context of this thread: a notebook finds in it the cell that shows what is drawn
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._draw_regularly,), name="live-view", daemon=True)
        self._thread.start()

    def _draw_regularly(self) -> None:
        while not self._over.wait(self.screen.every_s):
            self.draw()
            if self.screen.every_s is None:
                return
