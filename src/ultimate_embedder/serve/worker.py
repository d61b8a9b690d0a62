"""One thread that computes, one job after the other; those who wait do not block the server."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout  # another one before Python 3.11
from typing import Any, TypeVar

from ultimate_embedder.serve.answers import UNAVAILABLE, ApiError
from ultimate_embedder.stop import abandon

MOST_WAITING = 64
LEAVE_S = 3.0
Result = TypeVar("Result")


class Worker:
    """Runs jobs on a thread of its own, which is started with the first."""

    def __init__(self, name: str = "serve-encoder") -> None:
        self._name = name
        self._jobs: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._over = False

    async def run(self, job: Callable[[], Result]) -> Result:
        """What the job gives, when its turn has come; raises `ApiError` if too many wait."""
        outcome: Future[Result] = Future()
        try:
            self._jobs.put_nowait((job, outcome))
        except queue.Full:
            message = f"{MOST_WAITING} requests are waiting already. Try again in a moment."
            raise ApiError(UNAVAILABLE, message, code="busy", headers={"Retry-After": "5"}) from None
        if self._thread is None:  # only the event loop gets here: no lock is needed
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(outcome)

    def leave(self, last: Callable[[], None]) -> None:
        """Do one last job; what ends the process does not wait long for one that runs."""
        if self._thread is None:
            last()
            return
        outcome: Future[None] = Future()
        try:
            self._jobs.put((last, outcome), timeout=LEAVE_S)
            outcome.result(LEAVE_S)
        except (queue.Full, TimeoutError, FutureTimeout):
            abandon([self._thread])
        self._over = True
        with contextlib.suppress(queue.Full):  # then it ends after the job that runs
            self._jobs.put_nowait((lambda: None, Future()))

    def _work(self) -> None:
        while not self._over:
            job, outcome = self._jobs.get()
            if not outcome.set_running_or_notify_cancel():  # the client is gone
                continue
            try:
                outcome.set_result(job())
            except BaseException as error:  # noqa: BLE001 - raised again for whoever waits
                outcome.set_exception(error)
