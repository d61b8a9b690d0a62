"""The one loop that encodes: tokenise | cut | forward | check | store, overlapped. It knows neither modes nor files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial

from ultimate_embedder.batching import BATCH_TOKENS, card_batch_tokens
from ultimate_embedder.devices import Device, peak_half_flops
from ultimate_embedder.execution.batch_queue import BatchLimits, BatchQueue
from ultimate_embedder.execution.batches import EncodedBatch, StartedBatch
from ultimate_embedder.execution.concurrent import run_together
from ultimate_embedder.execution.executor import PassWork
from ultimate_embedder.execution.prefetch import prefetch
from ultimate_embedder.execution.windows import Window, predict_ahead, tokenize_windows
from ultimate_embedder.execution.worker import Worker
from ultimate_embedder.execution.writer import VectorWriter
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import Encoder
from ultimate_embedder.planning import PassPlan, Rows, TaskResult


def encode(
    rows: Rows, work: PassWork, workers: Sequence[Worker], tokenizer: Encoder, may_continue: Callable[[], bool]
) -> TaskResult:
    """Give every text among `rows` that needs one a vector, on all workers, as long as `may_continue` says so.

    `tokenizer` is the host's encoder, not a worker's: it is used on another thread.
    """
    tally = _Tally()
    with VectorWriter(work.sink) as writer, closing(prefetch(_windows(rows, work, workers, tokenizer))) as windows:
        queue = BatchQueue(
            windows, _limits(work.plan, workers[0].device, tokenizer), partial(_begin, work), may_continue
        )

        def finish(window: Window, encoded: EncodedBatch) -> None:
            if work.overflow is not None and work.overflow.too_narrow:
                queue.stop()  # the pass begins again in fp32: what was under way is of no use
                return
            good = encoded.started.rows[~encoded.bad]
            writer.append(window.keys[good], encoded.vectors[~encoded.bad], window.texts.truncated[good])
            tally.add(encoded)
            work.events.encoded(encoded)

        run_together([partial(_work, worker, queue, finish) for worker in workers], queue.stop)
    return tally.result()


def _begin(work: PassWork, window: Window) -> None:
    if work.overflow is not None:
        work.overflow.begin(len(window.keys))
    work.events.tokenized(window)


def _limits(plan: PassPlan, device: Device, encoder: Encoder) -> BatchLimits:
    """How large batches may be: as asked for, else what suits model and device; shared by all workers of a pass."""
    tokens = plan.batch_tokens or device.fixed_budget_tokens or _card_tokens(encoder, device)
    fixed = plan.batch_tokens is not None or device.fixed_budget_tokens is not None
    padded = plan.identity.layout != "packed"
    return BatchLimits(tokens * device.lanes, fixed, plan.batch_rows, avoid_padding=padded)


def _card_tokens(encoder: Encoder, device: Device) -> int:
    if device.capability is None or not encoder.layers:
        return BATCH_TOKENS
    return card_batch_tokens(encoder.layers, encoder.layer_weights, peak_half_flops(device.capability))


def _windows(rows: Rows, work: PassWork, workers: Sequence[Worker], tokenizer: Encoder) -> Iterator[Window]:
    windows = tokenize_windows(work.texts.read(rows), tokenizer, work.tokens)
    cards = {worker.device.capability for worker in workers if worker.device.has_ceiling}
    if tokenizer.tokenizes and cards:
        return predict_ahead(windows, tokenizer, cards)
    return windows


def _work(worker: Worker, queue: BatchQueue, finish: Callable[[Window, EncodedBatch], None]) -> None:
    """Two batches at a time: while a card computes one, the one before is stored and the next is prepared."""
    with worker.device.computing():
        worker.wait_from_here()
        computing: list[tuple[Window, StartedBatch]] = []

        def finish_oldest() -> None:
            if computing:
                window, started = computing.pop(0)
                finish(window, worker.finish(started))

        try:
            while taken := queue.take(worker.rows_that_fit):
                computing.append((taken.window, worker.start(taken.window.texts, taken.batch, taken.planned_rows)))
                if len(computing) > 1 or not worker.device.runs_ahead:
                    finish_oldest()
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to report
                finish_oldest()
            raise
        finish_oldest()


class _Tally:
    """Counts what workers have done."""

    def __init__(self) -> None:
        self._result = TaskResult()
        self._lock = OrderedLock("tally", Rank.COUNTS)

    def add(self, encoded: EncodedBatch) -> None:
        rows = {ran_on.device: ran_on.rows for ran_on, _ in encoded.started.parts()}
        with self._lock:
            self._result += TaskResult(rows, rows)

    def result(self) -> TaskResult:
        with self._lock:
            return self._result
