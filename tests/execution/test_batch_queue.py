"""The queue of batches: what a worker cannot finish is handed out again, and nobody leaves while that may happen."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np

from tests.support.clock import wait_until
from ultimate_embedder.batching import Batch, BatchLimits
from ultimate_embedder.execution.batch_queue import BatchQueue, QueuedBatch
from ultimate_embedder.execution.windows import Window
from ultimate_embedder.models import TokenizedTexts


def queue_of(texts: int, tokens: int = 64) -> BatchQueue:
    lengths = np.full(texts, 16)
    keys = np.arange(2 * texts, dtype=np.uint64).reshape(texts, 2)
    window = Window(keys, TokenizedTexts([None] * texts, lengths, np.zeros(texts, int)), 0.0)
    return BatchQueue(iter([window]), BatchLimits(tokens, fixed=True), lambda window: None, lambda: True)


def everything(batch: Batch, planned_rows: int) -> int:
    return len(batch.rows)


def rows_of(queued: QueuedBatch | None) -> list[int]:
    assert queued is not None
    return sorted(queued.batch.rows.tolist())


def test_a_worker_with_a_batch_to_finish_does_not_wait_for_texts_that_have_not_arrived() -> None:
    arrives = threading.Event()

    def windows() -> Iterator[Window | None]:
        while not arrives.wait(0.01):
            yield None

    queue = BatchQueue(windows(), BatchLimits(64, fixed=True), lambda window: None, lambda: True)
    idle = threading.Thread(target=queue.take, args=(everything,), daemon=True)  # holds nothing: waits
    idle.start()
    assert queue.take(everything, holding=1) is None
    assert idle.is_alive()
    arrives.set()
    idle.join(10)
    assert not idle.is_alive()


def test_what_is_given_back_is_handed_out_first_and_in_its_order() -> None:
    queue = queue_of(12)
    first, second = queue.take(everything), queue.take(everything)
    assert first is not None
    assert second is not None
    queue.give_back([first, second])
    assert rows_of(queue.take(everything)) == rows_of(first)
    assert rows_of(queue.take(everything)) == rows_of(second)


def test_a_batch_stays_in_the_queue_if_the_device_is_lost_while_its_size_is_decided() -> None:
    queue = queue_of(4)

    def lost(batch: Batch, planned_rows: int) -> int:
        raise RuntimeError("unspecified launch failure")

    try:
        queue.take(lost)
    except RuntimeError:
        assert len(rows_of(queue.take(everything))) == 4


def test_a_worker_that_finds_nothing_waits_for_what_others_hold() -> None:
    queue = queue_of(4)
    held = queue.take(everything)
    assert held is not None
    taken: list[QueuedBatch | None] = []
    waiting = threading.Thread(target=lambda: taken.append(queue.take(everything)), daemon=True)
    waiting.start()
    queue.give_back([held])
    wait_until(lambda: taken)
    assert rows_of(taken[0]) == rows_of(held)
    queue.done()
    assert queue.take(everything) is None
    assert not queue.unfinished


def test_a_worker_that_holds_something_itself_is_not_kept_waiting() -> None:
    queue = queue_of(4)
    queue.take(everything)
    assert queue.take(everything, holding=1) is None


def test_a_queue_is_unfinished_while_something_is_left_and_nobody_stopped_it() -> None:
    queue = queue_of(8)
    held = queue.take(everything)
    assert held is not None
    queue.give_back([held])
    assert queue.unfinished
    queue.stop()
    assert queue.take(everything) is None
    assert not queue.unfinished
