"""The one loop that encodes: tokenise | cut | forward | check | store, overlapped. It knows neither modes nor files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from ultimate_embedder.batching import Batch
from ultimate_embedder.devices import Device, in_one_line
from ultimate_embedder.errors import DevicesLostError
from ultimate_embedder.execution.batch_limits import batch_limits
from ultimate_embedder.execution.batch_queue import BatchQueue, QueuedBatch
from ultimate_embedder.execution.batches import EncodedBatch, StartedBatch
from ultimate_embedder.execution.concurrent import run_together
from ultimate_embedder.execution.executor import PassWork
from ultimate_embedder.execution.pooling import SegmentPool
from ultimate_embedder.execution.prefetch import prefetch
from ultimate_embedder.execution.stalls import StallWatch
from ultimate_embedder.execution.windows import Window, cutter_for, predict_ahead, tokenize_arriving
from ultimate_embedder.execution.worker import Worker
from ultimate_embedder.execution.writer import VectorWriter
from ultimate_embedder.models import Encoder
from ultimate_embedder.planning import Rows
from ultimate_embedder.sparse import sparse_from_dense


@dataclass(frozen=True)
class Watch:
    """What becomes of devices while a pass works: who watches for stalls, and who is told of a lost device."""

    stalls: StallWatch
    lost: Callable[[Device, int], None]
    """Called with the device and the rows that other devices have to do instead."""


def encode(
    rows: Rows,
    work: PassWork,
    workers: Sequence[Worker],
    tokenizer: Encoder,
    may_continue: Callable[[], bool],
    watch: Watch,
) -> None:
    """Give every text among `rows` that needs one a vector, on all workers, as long as `may_continue` says so.

    `tokenizer` is the host's encoder, not a worker's: it is used on another thread. A worker whose device is lost gives
    its batches back, for the others; raises `DevicesLostError` when there is none left.
    """
    sparse = work.plan.kind == "sparse"
    pool = SegmentPool(normalize=tokenizer.unit_norm or work.plan.identity.dim is not None, sparse=sparse)
    with VectorWriter(work.sink) as writer, closing(prefetch(_windows(rows, work, workers, tokenizer))) as windows:
        queue = BatchQueue(
            windows, batch_limits(work.plan, workers[0].device, tokenizer), partial(_begin, work), may_continue
        )

        def finish(window: Window, encoded: EncodedBatch) -> None:
            if watch.stalls.given_up:  # a device that hung and came back: the pass is over, nothing is stored any more
                return
            if work.overflow is not None and work.overflow.too_narrow:
                queue.stop()  # the pass begins again in fp32: what was under way is of no use
                return
            done = pool.add(window, encoded)
            vectors = sparse_from_dense(done.vectors) if sparse else done.vectors
            writer.append(window.keys[done.texts], vectors, window.texts.overlong[done.texts])
            work.events.encoded(encoded, window, done.texts)

        shifts = [_Shift(worker, queue, finish, watch) for worker in workers]
        if not run_together([shift.run for shift in shifts], queue.stop, lambda: watch.stalls.given_up):
            work.events.abandon()
    if queue.unfinished:
        names = " and ".join(dict.fromkeys(worker.device.name for worker in workers))
        raise DevicesLostError(f"{work.plan.name}: {names} stopped working")


def _begin(work: PassWork, window: Window) -> None:
    if work.overflow is not None:
        work.overflow.begin(len(window.texts.rows))
    work.events.tokenized(window)


def _windows(rows: Rows, work: PassWork, workers: Sequence[Worker], tokenizer: Encoder) -> Iterator[Window | None]:
    windows = tokenize_arriving(
        work.texts.read(rows), tokenizer, work.tokens, cutter_for(tokenizer, work.plan.identity)
    )
    cards = {worker.device.capability for worker in workers if worker.device.has_ceiling}
    if tokenizer.tokenizes and cards:
        return predict_ahead(windows, tokenizer, cards)
    return windows


@dataclass(frozen=True)
class _Held:
    """A batch that a worker has taken and not finished."""

    queued: QueuedBatch
    device: Device
    ticket: int
    started: StartedBatch | None = None


class _Shift:
    """What one worker does: two batches at a time. While a card computes one, the other is stored or prepared."""

    def __init__(
        self, worker: Worker, queue: BatchQueue, finish: Callable[[Window, EncodedBatch], None], watch: Watch
    ) -> None:
        self._worker = worker
        self._queue = queue
        self._finish = finish
        self._watch = watch
        self._held: list[_Held] = []

    def run(self) -> None:
        """Encode batches until there are none left, or until the device is lost."""
        try:
            self._work()
        except Exception as error:
            if self._watch.stalls.given_up:  # the device hung and came back: nobody waits for this worker any more
                return
            device = self._lost_device(error)
            if device is None:
                raise
            device.retire(in_one_line(error))
            self._watch.lost(device, self._give_back())

    def _work(self) -> None:
        worker = self._worker
        with worker.device.computing():
            worker.wait_from_here()
            try:
                while (taken := self._queue.take(self._rows_that_fit, len(self._held))) or self._held:
                    if taken:
                        self._start(taken)
                    if not taken or len(self._held) > 1 or not worker.device.runs_ahead:
                        self._finish_oldest()
            except BaseException as error:
                if self._lost_device(error) is None:
                    with contextlib.suppress(Exception):  # the first error is the one to report
                        self._finish_oldest()
                raise

    def _lost_device(self, error: BaseException) -> Device | None:
        """The device that is lost, if that is what the error means; a companion may have moved while it worked."""
        devices = [*(held.device for held in self._held), self._worker.device]
        lost = [device for device in {id(each): each for each in devices}.values() if device.is_lost(error)]
        if len(lost) > 1:
            lost = [device for device in lost if not device.works()]
        return lost[0] if lost else None

    def _give_back(self) -> int:
        """Leave what was taken to the other workers; gives its rows."""
        for held in self._held:
            self._watch.stalls.end(held.ticket, done=False)
        batches = [held.queued for held in self._held]
        self._held.clear()
        self._queue.give_back(batches)
        return sum(len(queued.batch.rows) for queued in batches)

    def _rows_that_fit(self, batch: Batch, planned_rows: int) -> int:
        """Asks the device, and waits for whoever has it: both may take for ever."""
        with self._watch.stalls.during(self._worker.device, len(batch.rows), batch.longest):
            return self._worker.rows_that_fit(batch, planned_rows)

    def _start(self, taken: QueuedBatch) -> None:
        device, batch = self._worker.device, taken.batch
        held = _Held(taken, device, self._watch.stalls.begin(device, len(batch.rows), batch.longest))
        self._held.append(held)
        started = self._worker.start(taken.window.texts, batch, taken.planned_rows)
        self._held[-1] = replace(held, started=started)

    def _finish_oldest(self) -> None:
        held = self._held[0]
        if held.started is None:
            return
        self._finish(held.queued.window, self._worker.finish(held.started))
        self._held.pop(0)
        self._watch.stalls.end(held.ticket)
        self._queue.done()
