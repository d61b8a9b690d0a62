"""Run several jobs at the same time, and end them together."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from ultimate_embedder.errors import forget_frames


def run_together(jobs: Sequence[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run the jobs at the same time; when one fails, or the user interrupts, stop the others and raise."""
    with ThreadPoolExecutor(len(jobs), thread_name_prefix="worker") as pool:
        futures = [pool.submit(_without_frames, job) for job in jobs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop()
    if any(future.exception() for future in futures):
        gc.collect()  # an error and its frames refer to each other, and to what they had on a device
    for future in futures:
        future.result()


def _without_frames(job: Callable[[], None]) -> None:
    try:
        job()
    except BaseException as error:
        forget_frames(error)
        raise
