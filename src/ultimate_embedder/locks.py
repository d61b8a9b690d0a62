"""Every lock between threads, and the one order in which they are taken, so that no two threads wait for each other.

docs/concurrency.md describes the threads. Checking the order costs time, so it is off until `check_lock_order(True)`.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType


class Rank(IntEnum):
    """The order: a thread that holds a lock may take only locks of a higher rank, or of the same at a later place."""

    CALLS = 5
    """One call of an `Embedder` at a time."""
    LEASES = 10
    """Which devices are leased, and which models are kept on them. Held while a kept model is evicted."""
    BATCH_QUEUE = 20
    """The batches of a pass. Held while the next batch is cut, for which the worker looks at its device's memory."""
    DEVICE = 30
    """The memory of one device: one forward at a time, and no other model's activations while memory is read."""
    WORKER = 40
    """A worker's model and where it is, at the place of its pass. To make room a worker locks those of later passes."""
    HOST = 45
    """The host as the last resort of all devices: one thread at a time computes there what a device could not."""
    LOADED_MODELS = 50
    """The models that are loaded. Held while one is loaded."""
    GRAPH = 55
    """The graph of a runtime beside torch. Held while it is loaded."""
    PACKING = 60
    """What is known of a model's packing. Held while it is tried."""
    KERNELS = 62
    """Our own kernels. Held while they are compiled."""
    TOKENIZER = 65
    """A tokenizer with a state: that of a fused model, or of a reranker, which its workers share."""
    PEAK = 70
    """Predictions of memory. torch has one flag for all threads that run on tensors without data."""
    TOKENS = 80
    """The token ids on disk that several models share."""
    COUNTS = 90
    """The rows that a pass has counted."""
    EMIT = 100
    """The order of events. Events are emitted under most of the locks above."""
    EVENT_LOG = 105
    """The file of events, and what is to be added to it."""
    TELEMETRY = 110
    """The lists of events that notebooks read."""
    LIVE_VIEW = 120
    """The state of the run that is shown while it goes on. Held while an event is added, or a view is made."""


_checking = False


@dataclass(frozen=True)
class _Held:
    lock: OrderedLock
    where: str


class _Thread(threading.local):
    """The locks that the current thread holds, in the order in which it took them."""

    def __init__(self) -> None:
        self.held: list[_Held] = []


_thread = _Thread()


def check_lock_order(on: bool) -> None:
    """From now on raise AssertionError where a thread takes locks out of order; or stop checking."""
    global _checking
    _checking = on


class OrderedLock:
    """A lock in the order of all locks; not re-entrant. `place` orders those of one rank that are held together."""

    def __init__(self, name: str, rank: Rank, place: int = 0) -> None:
        self.name = name
        self.rank = rank
        self.place = place
        self._lock = threading.Lock()

    def __str__(self) -> str:
        place = f", place {self.place}" if self.place else ""
        return f"{self.name} (rank {self.rank.name} {self.rank.value}{place})"

    def acquire(self) -> None:
        """Wait for the lock and take it."""
        if not _checking:
            self._lock.acquire()
            return
        where = _caller()
        for held in _thread.held:
            if not held.lock.comes_before(self):
                raise AssertionError(f"{self} is taken at {where} while {held.lock} is held since {held.where}")
        self._lock.acquire()
        _thread.held.append(_Held(self, where))

    def release(self) -> None:
        """Give the lock back."""
        _thread.held[:] = [held for held in _thread.held if held.lock is not self]
        self._lock.release()

    def locked(self) -> bool:
        """Whether any thread holds it."""
        return self._lock.locked()

    def comes_before(self, other: OrderedLock) -> bool:
        """Whether a thread that holds this lock may take the other."""
        return (self.rank, self.place) < (other.rank, other.place)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class OrderedCondition(OrderedLock):
    """A lock that a thread can give up until another thread has changed something."""

    def __init__(self, name: str, rank: Rank) -> None:
        super().__init__(name, rank)
        self._changed = threading.Condition(self._lock)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Give the lock back until `notify_all`, or until the time is over (False); the thread may hold no other."""
        held = _thread.held
        others = [each for each in held if each.lock is not self]
        if others:
            raise AssertionError(f"{self} is waited for at {_caller()} while {others[0].lock} is held")
        _thread.held = []
        try:
            return self._changed.wait(timeout_s)
        finally:
            _thread.held = held

    def notify_all(self) -> None:
        """Wake every thread that waits."""
        self._changed.notify_all()


def _caller() -> str:
    """The line that called into this module."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
