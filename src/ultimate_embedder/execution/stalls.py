"""Notice a device that hangs: a batch that takes far longer than those before it, and one that takes too long.

A thread looks at what the workers of a pass have started and not finished. It asks the device nothing: that would hang
too.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ultimate_embedder.devices import Device

TIMES_EXPECTED = 50
LEAST_STALL_S = 120.0
FIRST_BATCH_S = 30.0  # what a batch is expected to take on a device that has not finished one yet
POLL_S = 1.0
GRACE_S = 10.0  # for other devices to finish what they have begun, before everything is abandoned


@dataclass(frozen=True)
class Stall:
    """A batch that should have been done long ago."""

    device: Device
    rows: int
    longest: int
    seconds: float
    expected_seconds: float

    @property
    def what(self) -> str:
        """What takes so long, in words."""
        return "a batch" if self.rows else "moving the weights"


@dataclass(frozen=True)
class _Batch:
    device: Device
    rows: int
    longest: int
    tokens: int
    since: float


class StallWatch:
    """Knows the batches in flight. Workers tell it what they begin and end; a context manager, for its thread."""

    def __init__(
        self,
        report: Callable[[Stall], None],
        timeout_s: float | None,
        give_up: Callable[[Stall], None],
        devices: Callable[[], Iterable[Device]] = tuple,
    ) -> None:
        """`report` is called once per stall; `give_up` once, when a batch has taken `timeout_s`.

        `devices` are those that are worked on: if one is given up by others, who share it, so it is here.
        """
        self._devices = devices
        self._report = report
        self._timeout_s = timeout_s
        self._give_up = give_up
        self._numbers = itertools.count()
        self._in_flight: dict[int, _Batch] = {}  # single operations on it only: no lock
        self._seconds_per_token: dict[str, float] = {}
        self._told: set[int] = set()
        self._given_up_at: float | None = None
        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[StallWatch]:
        """Watch within the block."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        try:
            yield self
        finally:
            self._over.set()

    @property
    def given_up(self) -> bool:
        """Whether a batch has taken too long, and the others have had time to end."""
        return self._given_up_at is not None and time.monotonic() - self._given_up_at >= GRACE_S

    def begin(self, device: Device, rows: int, longest: int) -> int:
        """A batch is being started; gives its number."""
        number = next(self._numbers)
        self._in_flight[number] = _Batch(device, rows, longest, rows * longest, time.monotonic())
        return number

    def end(self, number: int, *, done: bool = True) -> None:
        """A batch is not in flight any more."""
        batch = self._in_flight.pop(number)
        if done:
            pace = (time.monotonic() - batch.since) / batch.tokens
            self._seconds_per_token[batch.device.name] = max(pace, self._seconds_per_token.get(batch.device.name, 0.0))

    @contextmanager
    def during(self, device: Device, rows: int = 0, longest: int = 0) -> Iterator[None]:
        """A device is asked for something else than a batch within the block, and may hang then too."""
        number = self.begin(device, rows, longest)
        try:
            yield
        finally:
            self.end(number, done=False)

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            self.look()

    def look(self) -> None:
        """Report what takes too long."""
        oldest: dict[str, tuple[int, _Batch]] = {}
        for number, batch in sorted(self._in_flight.items()):
            oldest.setdefault(batch.device.name, (number, batch))  # those behind it wait for it
        for number, batch in oldest.values():
            stall = self._stall_of(batch)
            too_long = self._timeout_s is not None and stall.seconds >= self._timeout_s
            if number not in self._told and (too_long or _is_stall(stall)):
                self._told.add(number)
                self._report(stall)
            if too_long and self._given_up_at is None:
                self._given_up_at = time.monotonic()
                self._give_up(stall)
        if self._given_up_at is None and any(device.hangs for device in self._devices()):
            self._given_up_at = time.monotonic()

    def _stall_of(self, batch: _Batch) -> Stall:
        pace = self._seconds_per_token.get(batch.device.name)
        expected = FIRST_BATCH_S if pace is None or not batch.tokens else pace * batch.tokens
        return Stall(batch.device, batch.rows, batch.longest, time.monotonic() - batch.since, expected)


def _is_stall(stall: Stall) -> bool:
    return stall.seconds >= max(LEAST_STALL_S, TIMES_EXPECTED * stall.expected_seconds)
