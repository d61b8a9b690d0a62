"""Run several jobs at the same time, and end them together."""

from __future__ import annotations

import contextlib
import gc
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from ultimate_embedder.errors import forget_frames
from ultimate_embedder.stop import abandon

POLL_S = 0.1  # between two looks at whether jobs have to be given up
SWITCH_INTERVAL_S = 0.0005  # of Python's lock; by default ten times as long


@contextlib.contextmanager
def quick_switching() -> Iterator[None]:
    """Let a thread have Python's lock soon after it wakes up: its card has nothing to do until it does.

    It is a setting of the whole process, and put back afterwards.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH_INTERVAL_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_together(
    jobs: Sequence[Callable[[], None]], stop: Callable[[], None], given_up: Callable[[], bool] | None = None
) -> bool:
    """Run the jobs at the same time; when one fails, or the user interrupts, stop the others and raise.

    True if all have ended. False if some had to be abandoned, as `given_up` says that they will not come back: their
    threads are blocked in a driver, and nobody waits for them, not even the end of the process.
    """
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    threads = [
        threading.Thread(target=_run, args=(job, ended), name=f"worker_{number}", daemon=True)
        for number, job in enumerate(jobs)
    ]
    for thread in threads:
        thread.start()
    errors: list[BaseException] = []
    try:
        left = _collect(ended, len(jobs), errors, stop, given_up)
    except BaseException:  # the user interrupts
        stop()
        for thread in threads:
            thread.join()
        raise
    if left:
        stop()
        abandon(thread for thread in threads if thread.is_alive())
    if errors:
        gc.collect()  # an error and its frames refer to each other, and to what they had on a device
        raise errors[0]
    return not left


def _collect(
    ended: queue.SimpleQueue[BaseException | None],
    running: int,
    errors: list[BaseException],
    stop: Callable[[], None],
    given_up: Callable[[], bool] | None,
) -> int:
    """Wait for jobs to end; gives how many did not."""
    while running:
        try:
            error = ended.get(timeout=POLL_S if given_up is not None else None)
        except queue.Empty:
            if given_up is not None and given_up():
                break
            continue
        running -= 1
        if error is not None:
            errors.append(error)
            stop()
    return running


def _run(job: Callable[[], None], ended: queue.SimpleQueue[BaseException | None]) -> None:
    try:
        job()
    except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
        forget_frames(error)
        ended.put(error)
    else:
        ended.put(None)
