"""A clock for tests: it moves only when it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

HANG_S = 300.0  # only a test that hangs takes that long


class Clock:
    """Stands in for the module `time` inside one module: `monkeypatch.setattr("...retry.time", clock)`."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []
        self._lock = threading.Lock()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self.now_s += seconds

    def sleep(self, seconds: float) -> None:
        """Remember the wait, and be done with it."""
        self.slept_s.append(seconds)
        self.advance(seconds)

    def monotonic(self) -> float:
        """The time in seconds."""
        return self.now_s

    perf_counter = monotonic

    def monotonic_ns(self) -> int:
        """The time in nanoseconds; never twice the same, as of a real clock."""
        self.advance(1e-9)
        return int(self.now_s * 1e9)


def wait_until(happened: Callable[[], object]) -> None:
    """Wait for something that must happen; fail if the test hangs."""
    started = time.monotonic()
    while not happened():
        assert time.monotonic() - started < HANG_S, "it never happened"
        time.sleep(0.01)
