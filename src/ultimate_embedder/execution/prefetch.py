"""Prefetch the items of an iterator on a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

Item = TypeVar("Item")


class _End:
    """Marks the end of the items, with the error that caused it, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetch(items: Iterable[Item], depth: int = 1) -> Generator[Item, None, None]:
    """Yield `items`, computing up to `depth` of them in advance; an error is raised where its item would be.

    When the reader stops early the thread ends after the item it is at.
    """
    ready: queue.Queue[Item | _End] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: Item | _End) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def produce() -> None:
        try:
            for item in items:
                put(item)
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised again by the reader
            put(_End(error))
        else:
            put(_End(None))

    thread = threading.Thread(target=produce, name="prefetch", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        thread.join()
