"""Write several exports side by side, from one reading of the points.

The calling thread reads blocks and hands each to every export, which has a thread of its own: Arrow, checksums, the
disk and the processes that write a shard work outside of Python's lock. Queues are bounded: the slowest export sets the
pace.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from ultimate_embedder.export.points import PointBlock, Points
from ultimate_embedder.stop import StopSwitch

WAITING_BLOCKS = 2  # for each export
Result = TypeVar("Result")


class _Last(Enum):
    COMPLETE = "all points were handed over"
    INTERRUPTED = "the stop switch says why there are no more"


COMPLETE, INTERRUPTED = _Last.COMPLETE, _Last.INTERRUPTED


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """What became of a job."""

    result: Callable[[], Result]
    """Gives what the job gave, or raises what it raised."""
    busy_s: float
    """The time that it took, without waiting for points."""


def write_together(
    points: Points, jobs: Sequence[Callable[[Points], Result]]
) -> Generator[Outcome[Result], None, None]:
    """Run jobs that each take all points; gives what became of each, in their order, as soon as it is known.

    When one fails, the others go on. When the reading fails, or this is closed or interrupted, all of them end first.
    """
    if not jobs:
        return
    stop = _StopHere(points.stop)
    running = [_Running(job, points, stop, f"export-{number}") for number, job in enumerate(jobs)]
    try:
        for each in running:
            each.start()
        for block in points.blocks():
            for each in running:
                each.give(block)
        for each in running:
            each.give(COMPLETE)
        for each in running:
            each.join()
            yield each.outcome()
    except BaseException as error:
        stop.stop(f"the exports were interrupted ({type(error).__name__})")
        for each in running:
            each.give(INTERRUPTED)
        raise
    finally:
        for each in running:
            each.join()


class _StopHere(StopSwitch):
    """Stops with the run, or when these exports must end."""

    def __init__(self, run: StopSwitch) -> None:
        super().__init__()
        self._run = run

    @property
    def reason(self) -> str | None:
        """Why the exports must stop, or None."""
        return self._run.reason or self._reason


class _Running(Generic[Result]):
    """A job on a thread of its own, and the blocks that wait for it."""

    def __init__(self, job: Callable[[Points], Result], points: Points, stop: StopSwitch, name: str) -> None:
        self._result: Future[Result] = Future()
        self._waited_s = self._busy_s = 0.0
        self._job, self._points = job, points.fed_by(self._take, stop)
        self._blocks: queue.Queue[PointBlock | _Last] = queue.Queue(WAITING_BLOCKS)
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def outcome(self) -> Outcome[Result]:
        return Outcome(self._result.result, self._busy_s)

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def give(self, block: PointBlock | _Last) -> None:
        """Hand over a block, or that there are no more; waits while others wait before it."""
        if not self._ended:
            self._blocks.put(block)

    def _take(self) -> Iterator[PointBlock]:
        while True:
            waiting = time.perf_counter()
            block = self._blocks.get()
            self._waited_s += time.perf_counter() - waiting
            if isinstance(block, _Last):
                break
            yield block
        if block is INTERRUPTED:
            self._points.stop.check()

    def _run(self) -> None:
        started = time.perf_counter()
        try:
            self._result.set_result(self._job(self._points))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever asks for the outcome
            self._result.set_exception(error)
        finally:
            self._busy_s = time.perf_counter() - started - self._waited_s
            self._ended = True
            self._let_go()

    def _let_go(self) -> None:
        """Empty the queue: whoever waits to hand over a block goes on, and the next one sees that it is not needed."""
        while True:
            try:
                self._blocks.get_nowait()
            except queue.Empty:
                return
