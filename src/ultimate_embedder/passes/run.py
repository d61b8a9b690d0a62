"""The one loop that runs a pass: tokenise | cut | forward | check | store, overlapped."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder.chunks import ChunkTable
from ultimate_embedder.config import ExportKind
from ultimate_embedder.errors import OutputError
from ultimate_embedder.events import BatchEncoded, Emit, Mitigated, PassFinished, PassStarted, WindowTokenized
from ultimate_embedder.models import Encoder
from ultimate_embedder.passes.ahead import run_ahead
from ultimate_embedder.passes.encoders import EncoderPool
from ultimate_embedder.passes.modes import PassPlan
from ultimate_embedder.passes.placement import placed
from ultimate_embedder.passes.windows import BatchFeed, Window, tokenized_windows
from ultimate_embedder.passes.worker import EncodedBatch, Worker
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.vectors import VectorStore, fingerprint

# of an export, in sizes of the vectors as float32
EXPORT_SIZES: dict[ExportKind, int] = {"npy": 1, "parquet": 1, "jsonl": 3, "qdrant": 1}
ENOUGH_TOKENS = 16_384  # a batch this large keeps a card busy; it may be larger where that costs no padding


def run_pass(
    plan: PassPlan,
    collection: str,
    table: ChunkTable,
    store: VectorStore,
    encoders: EncoderPool,
    stop: StopSwitch,
    emit: Emit,
) -> None:
    """Give every text of the table a vector in the store, unless it is stopped. Texts that have one cost nothing."""
    wanted = _first_occurrences(table.keys) & ~store.holds(table.keys)
    encoder = encoders.get(plan) if wanted.any() else None
    started = time.perf_counter()
    emit(
        PassStarted(
            collection=collection,
            model=plan.model.name,
            model_pass=plan.number,
            weight=plan.weight,
            devices=[device.name for device in plan.devices],
            dtype=plan.identity.dtype,
            fingerprint=fingerprint(plan.identity),
            texts=table.distinct_texts(),
            stored_texts=table.distinct_texts() - int(wanted.sum()),
        )
    )
    if encoder is not None:
        require_room(store.folder, int(wanted.sum()), len(table), encoder.dim, encoders.exports)
        _Run(plan, collection, store, stop, emit).encode(encoder, lambda: encoders.exact(plan), table, wanted)
    emit(
        PassFinished(
            collection=collection,
            model=plan.model.name,
            model_pass=plan.number,
            dim=store.dim or 0,
            stored_chunks=int(store.holds(table.keys).sum()),
            truncated=store.count_truncated(table.keys),
            seconds=time.perf_counter() - started,
        )
    )


class _Run:
    """The workers of one pass, and what they share: the feed of batches and the store."""

    def __init__(self, plan: PassPlan, collection: str, store: VectorStore, stop: StopSwitch, emit: Emit) -> None:
        self._plan = plan
        self._stop = stop
        self._collection = collection
        self._store = store
        self._emit = emit
        self._storing = threading.Lock()
        self._batch_numbers = itertools.count()

    def encode(
        self, encoder: Encoder, exact_encoder: Callable[[], Encoder], table: ChunkTable, wanted: np.ndarray
    ) -> None:
        """Encode the wanted rows on all devices of the pass."""
        with (
            self._store,
            placed(encoder, self._plan.devices, self._report) as placements,
            # the host's tokeniser, not a device's: it is used on another thread
            closing(run_ahead(tokenized_windows(table, wanted, encoder))) as windows,
        ):
            may_go_on = partial(_nothing_said, self._stop)
            feed = BatchFeed(windows, self._enough_tokens(), self._window_done, may_go_on)
            workers = [
                Worker(replica, device, exact_encoder, self._reporter(device.name)) for replica, device in placements
            ]
            _run_all([partial(self._work, worker, feed) for worker in workers], feed.stop)

    def _work(self, worker: Worker, feed: BatchFeed) -> None:
        waiting_since = time.perf_counter()
        while taken := feed.take(worker.most_rows):
            window, batch = taken
            waited = time.perf_counter() - waiting_since
            encoded = worker.encode(window.texts, batch)
            good = batch.rows[~encoded.bad]
            with self._storing:
                self._store.append(window.keys[good], encoded.vectors[~encoded.bad], window.texts.truncated[good])
            waiting_since = time.perf_counter()
            self._batch_done(worker, window, batch.rows, encoded, waited)

    def _enough_tokens(self) -> int:
        return max(device.fixed_budget_tokens or ENOUGH_TOKENS for device in self._plan.devices)

    def _reporter(self, device: str) -> Callable[[str, dict[str, Any]], None]:
        return lambda kind, details: self._report(kind, {"device": device, **details})

    def _report(self, kind: str, details: dict[str, Any]) -> None:
        details = {"model": self._plan.model.name, **details}
        self._emit(Mitigated(collection=self._collection, kind=kind, details=details))

    def _window_done(self, window: Window) -> None:
        self._emit(
            WindowTokenized(
                collection=self._collection,
                model=self._plan.model.name,
                texts=len(window.keys),
                tokens=int(window.texts.lengths.sum()),
                truncated=int(window.texts.truncated.sum()),
                seconds=window.seconds,
            )
        )

    def _batch_done(
        self, worker: Worker, window: Window, rows: np.ndarray, encoded: EncodedBatch, waited: float
    ) -> None:
        lengths = window.texts.lengths[rows]
        self._emit(
            BatchEncoded(
                collection=self._collection,
                model=self._plan.model.name,
                model_pass=self._plan.number,
                batch_index=next(self._batch_numbers),
                device=worker.device.name,
                rows=len(rows),
                tokens=int(lengths.sum()),
                padded_tokens=int(lengths.max()) * len(rows),
                longest=int(lengths.max()),
                bad_rows=int(encoded.bad.sum()),
                exact_rows=encoded.exact_rows,
                predicted_bytes=encoded.predicted_bytes,
                measured_bytes=encoded.measured_bytes,
                wait_seconds=waited,
                forward_seconds=encoded.seconds,
                memory_before=encoded.before,
                memory=encoded.after,
            )
        )


def _run_all(jobs: list[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run the jobs at the same time; when one fails, or the user interrupts, stop the others and raise."""
    with ThreadPoolExecutor(len(jobs), thread_name_prefix="worker") as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop()
    for future in futures:
        future.result()


def require_room(folder: Path, new_texts: int, chunks: int, dim: int, exports: Sequence[ExportKind]) -> None:
    """Refuse to start what the disk cannot hold: vectors now, and each export of them later."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    needed = (new_texts + chunks * sum(EXPORT_SIZES[kind] for kind in exports)) * dim * 4
    free = shutil.disk_usage(place).free
    if needed > free:
        raise OutputError(
            f"{place} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are needed for the vectors of "
            f"{chunks} chunks and their exports. Free some, choose another --output, or fewer --export."
        )


def _nothing_said(stop: StopSwitch) -> bool:
    return stop.reason is None


def _first_occurrences(keys: np.ndarray) -> np.ndarray:
    first = np.zeros(len(keys), bool)
    if len(keys):
        first[np.unique(keys, axis=0, return_index=True)[1]] = True
    return first
