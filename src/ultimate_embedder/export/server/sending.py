"""Send batches on several threads while the next ones are read."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from ultimate_embedder.stop import abandon

Work = TypeVar("Work")
Done = TypeVar("Done")
GRACE_S = 1.0  # for requests in flight when the upload is interrupted


def run_in_order(
    work: Iterable[Work], do: Callable[[Work], Done], parallel: int, stopped: threading.Event
) -> Iterator[Done]:
    """Yield what `do` gives for each item, in order; up to `parallel` items are being done, and one is ready.

    An error is raised in the place of its item, so that all before it were done. After an error no more items are read.
    Where the caller leaves early, requests in flight are abandoned: `stopped` tells them not to try again.
    """
    jobs: queue.SimpleQueue[tuple[Work, Future[Done]] | None] = queue.SimpleQueue()
    failed = threading.Event()

    def run() -> None:
        while (job := jobs.get()) is not None:
            item, outcome = job
            try:
                if not stopped.is_set():
                    outcome.set_result(do(item))
            except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
                failed.set()
                outcome.set_exception(error)

    threads = [threading.Thread(target=run, name=f"send-{number}", daemon=True) for number in range(parallel)]
    for thread in threads:
        thread.start()
    waiting: deque[Future[Done]] = deque()
    try:
        for item in work:
            outcome: Future[Done] = Future()
            waiting.append(outcome)
            jobs.put((item, outcome))
            while waiting and (waiting[0].done() or len(waiting) > parallel):
                yield waiting.popleft().result()
            if failed.is_set():
                break
        while waiting:
            yield waiting.popleft().result()
    except BaseException:
        stopped.set()
        raise
    finally:
        for _ in threads:
            jobs.put(None)
        until = time.monotonic() + GRACE_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()) if stopped.is_set() else None)
        abandon(thread for thread in threads if thread.is_alive())
