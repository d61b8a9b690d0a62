"""The one loop that runs a pass: tokenise | cut | forward | check | store, overlapped."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder.chunks import ChunkTable
from ultimate_embedder.config import Parallelism
from ultimate_embedder.devices import CpuDevice, Device, Lease
from ultimate_embedder.events import (
    BatchEncoded,
    Emit,
    Mitigated,
    PassFinished,
    PassStarted,
    PrecisionChecked,
    Warned,
    WindowTokenized,
)
from ultimate_embedder.models import Encoder
from ultimate_embedder.passes.agreement import agreement_of
from ultimate_embedder.passes.ahead import run_ahead
from ultimate_embedder.passes.batches import EncodedBatch, StartedBatch
from ultimate_embedder.passes.encoders import EncoderPool
from ultimate_embedder.passes.modes import PassPlan
from ultimate_embedder.passes.placement import Placement, place
from ultimate_embedder.passes.stores import require_room
from ultimate_embedder.passes.together import run_all
from ultimate_embedder.passes.windows import BatchFeed, Window, foreseen, tokenized_windows
from ultimate_embedder.passes.worker import Learned, Worker
from ultimate_embedder.passes.writer import StoreWriter
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.vectors import EncoderFacts, TokenStore, VectorStore, fingerprint

ENOUGH_TOKENS = 16_384  # a batch this large keeps a card busy; it may be larger where that costs no padding


class PassRun:
    """One pass over one collection: gives every text of the table a vector in the store, in one turn or in several."""

    def __init__(
        self,
        plan: PassPlan,
        collection: str,
        table: ChunkTable,
        store: VectorStore,
        encoders: EncoderPool,
        stop: StopSwitch,
        emit: Emit,
    ) -> None:
        self.plan = plan
        self.collection = collection
        self.wanted = _first_occurrences(table.keys) & ~store.holds(table.keys)
        """Rows that need encoding. Texts that have a vector, or share a text with an earlier row, cost nothing."""
        self.shared_tokens: TokenStore | None = None
        """Where another pass tokenises alike."""
        self._table = table
        self._store = store
        self._encoders = encoders
        self._stop = stop
        self._emit = emit
        self._seconds = 0.0
        self._counting = threading.Lock()
        self._batch_numbers = itertools.count()
        self._learned: dict[str, Learned] = {}
        self._largest_batch: dict[str, int] = {}
        self._rows = 0

    @property
    def rows(self) -> int:
        """Rows of the table, wanted or not."""
        return len(self.wanted)

    @property
    def scratch(self) -> Path:
        """A folder for what is needed only until all passes are done."""
        return self._store.folder.parent

    @property
    def encoder(self) -> Encoder:
        """The model, on the host unless it is seated."""
        return self._encoders.get(self.plan)

    def start(self, devices: Sequence[Device]) -> None:
        """Load the model, if there is anything to encode, and say what is about to happen."""
        if self.wanted.any() and self._stop.reason is None:
            dim = self.plan.identity.dim or self.encoder.dim
            new_texts = int(self.wanted.sum())
            require_room(self._store.folder, new_texts, len(self._table), dim, self._encoders.exports)
            self._store.describe_encoder(EncoderFacts(self.encoder.max_tokens, self.encoder.document_prompt))
        facts = self._store.encoder_facts
        texts = self._table.distinct_texts()
        self._emit(
            PassStarted(
                collection=self.collection,
                model=self.plan.name,
                model_pass=self.plan.number,
                weight=self.plan.weight,
                devices=[device.name for device in devices],
                dtype=self.plan.identity.dtype,
                fingerprint=fingerprint(self.plan.identity),
                texts=texts,
                stored_texts=texts - int(self.wanted.sum()),
                max_tokens=facts.max_tokens if facts else None,
                document_prompt=facts.document_prompt if facts else None,
            )
        )

    def finish(self) -> None:
        """Say what has happened."""
        keys = self._table.keys
        if self.plan.identity.dtype == "int8" and self._stop.reason is None:
            self._tell_agreement()
        self._emit(
            PassFinished(
                collection=self.collection,
                model=self.plan.name,
                model_pass=self.plan.number,
                weight=self.plan.weight,
                devices=list(self._largest_batch),
                rows=self._rows,
                batch_rows=sum(self._largest_batch.values()),
                dim=self._store.dim or 0,
                stored_chunks=int(self._store.holds(keys).sum()),
                truncated=self._store.count_truncated(keys),
                seconds=self._seconds,
            )
        )

    def _tell_agreement(self) -> None:
        started = time.perf_counter()
        dtype, dim = self.plan.identity.dtype, self.plan.identity.dim
        found = agreement_of(self._store, self._table, lambda: self._encoders.exact(self.plan), dim, self._rows)
        if found is None:
            return
        self._emit(
            PrecisionChecked(
                collection=self.collection,
                model=self.plan.name,
                model_pass=self.plan.number,
                dtype=dtype,
                texts=found.texts,
                mean_cosine=found.mean_cosine,
                worst_cosine=found.worst_cosine,
                seconds=time.perf_counter() - started,
            )
        )
        if found.poor:
            cosines = f"{found.mean_cosine:.4f} with fp32 on average, {found.worst_cosine:.4f} at worst"
            message = f"{self.plan.name} loses much in {dtype}: cosine {cosines}. Drop --precision {dtype}."
            self._emit(Warned(collection=self.collection, message=message))

    @contextlib.contextmanager
    def seated(
        self,
        lease: Lease,
        parallelism: Parallelism,
        *,
        companions: Sequence[Worker] = (),
        refuges: Sequence[Device] = (),
    ) -> Iterator[list[Worker]]:
        """Workers on the leased devices; the weights are there, or are brought there."""
        started = time.perf_counter()
        if not isinstance(lease.resident, Placement):
            # on a CPU the exact model does the work, whatever the pass is in: it is the faster one there
            half = self.plan.identity.dtype in ("float16", "bfloat16")
            on_cpu = half and all(isinstance(device, CpuDevice) for device in lease.devices)
            encoder = self._encoders.exact(self.plan) if on_cpu else self.encoder
            lease.resident = place(encoder, lease.devices, parallelism, self._report)
        lease.moving_seconds += time.perf_counter() - started
        workers = [
            Worker(
                encoder,
                device,
                lambda: self._encoders.exact(self.plan),
                self._reporter(device.name),
                dim=self.plan.identity.dim,
                learned=self._learned.get(device.name),
                companions=companions,
                refuges=refuges,
            )
            for encoder, device in lease.resident.seats
        ]
        try:
            yield workers
        finally:
            self._learned = {worker.device.name: worker.learned() for worker in workers}
            self._seconds += time.perf_counter() - started

    def encode(self, workers: Sequence[Worker], rows: slice, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Encode those of the table's rows that are wanted, on all workers, unless it is stopped or cancelled."""
        wanted = np.zeros_like(self.wanted)
        wanted[rows] = self.wanted[rows]
        # the host's tokeniser, not a device's: it is used on another thread
        tokenized = tokenized_windows(self._table, wanted, self.encoder, self.shared_tokens)
        if self.encoder.tokenizes and any(worker.device.fixed_budget_tokens is None for worker in workers):
            tokenized = foreseen(tokenized, self.encoder)
        with StoreWriter(self._store) as writer, closing(run_ahead(tokenized)) as windows:
            may_go_on = partial(_nothing_said, self._stop, cancelled)
            enough = max(worker.device.fixed_budget_tokens or ENOUGH_TOKENS for worker in workers)
            feed = BatchFeed(windows, workers[0].device.lanes, len(workers), enough, self._window_done, may_go_on)
            run_all([partial(self._work, worker, feed, writer) for worker in workers], feed.stop)

    def _work(self, worker: Worker, feed: BatchFeed, writer: StoreWriter) -> None:
        with worker.device.computing():
            self._work_off(worker, feed, writer)

    def _work_off(self, worker: Worker, feed: BatchFeed, writer: StoreWriter) -> None:
        """Two batches at a time: while a card computes one, the one before is stored and the next is prepared."""
        worker.wait_from_here()
        computing: list[tuple[Window, StartedBatch]] = []
        store = partial(self._store_first, computing, worker, writer)
        try:
            while taken := feed.take(worker.most_rows):
                window, batch = taken
                computing.append((window, worker.start(window.texts, batch)))
                if len(computing) > 1 or not worker.device.runs_ahead:
                    store()
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                store()
            raise
        store()

    def _store_first(self, computing: list[tuple[Window, StartedBatch]], worker: Worker, writer: StoreWriter) -> None:
        if not computing:
            return
        window, started = computing.pop(0)
        encoded = worker.finish(started)
        good = started.rows[~encoded.bad]
        writer.append(window.keys[good], encoded.vectors[~encoded.bad], window.texts.truncated[good])
        self._batch_done(encoded)

    def _reporter(self, device: str) -> Callable[[str, dict[str, Any]], None]:
        return lambda kind, details: self._report(kind, {"device": device, **details})

    def _report(self, kind: str, details: dict[str, Any]) -> None:
        details = {"model": self.plan.name, **details}
        self._emit(Mitigated(collection=self.collection, kind=kind, details=details))

    def _window_done(self, window: Window) -> None:
        self._emit(
            WindowTokenized(
                collection=self.collection,
                model=self.plan.name,
                model_pass=self.plan.number,
                texts=len(window.keys),
                tokens=int(window.texts.lengths.sum()),
                truncated=int(window.texts.truncated.sum()),
                seconds=window.seconds,
            )
        )

    def _batch_done(self, encoded: EncodedBatch) -> None:
        started = encoded.started
        rows, lengths = len(started.rows), started.lengths
        with self._counting:
            self._rows += rows
            self._largest_batch[started.device] = max(rows, self._largest_batch.get(started.device, 0))
        self._emit(
            BatchEncoded(
                collection=self.collection,
                model=self.plan.name,
                model_pass=self.plan.number,
                batch_index=next(self._batch_numbers),
                device=started.device,
                rows=rows,
                tokens=int(lengths.sum()),
                padded_tokens=int(lengths.sum()) if started.packed else int(lengths.max()) * rows,
                longest=int(lengths.max()),
                bad_rows=int(encoded.bad.sum()),
                packed=started.packed,
                exact_rows=encoded.exact_rows,
                predicted_bytes=started.predicted_bytes,
                measured_bytes=started.measured_bytes,
                wait_seconds=encoded.waited,
                forward_seconds=encoded.seconds,
                memory_before=started.before,
                memory=started.after,
            )
        )


def _nothing_said(stop: StopSwitch, cancelled: Callable[[], bool]) -> bool:
    return stop.reason is None and not cancelled()


def _first_occurrences(keys: np.ndarray) -> np.ndarray:
    first = np.zeros(len(keys), bool)
    if len(keys):
        first[np.unique(keys, axis=0, return_index=True)[1]] = True
    return first
