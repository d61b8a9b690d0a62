"""Score candidates with a reranker: under a lease, in batches that fit, with the ladder behind them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ultimate_embedder.batching import BATCH_TOKENS, BatchLimits
from ultimate_embedder.devices import CpuDevice, Device, Leases, in_one_line
from ultimate_embedder.errors import DevicesLostError
from ultimate_embedder.events import Emit, Mitigated, ModelLoadStarted
from ultimate_embedder.execution.batch_queue import BatchQueue
from ultimate_embedder.execution.concurrent import run_together
from ultimate_embedder.execution.ladder import DEVICE_LOST, Mitigation
from ultimate_embedder.execution.placement import Placement, place
from ultimate_embedder.execution.windows import Window
from ultimate_embedder.execution.worker import Worker
from ultimate_embedder.models import Reranker, TokenizedTexts, load_reranker
from ultimate_embedder.types import ResolvedModel


@dataclass(frozen=True)
class RerankScores:
    """A score for each text, and what it took."""

    scores: np.ndarray
    device: str
    dtype: str
    tokens: int
    truncated: int
    """Texts beyond the token limit: their ends were not read."""
    batches: int
    seconds: float


class RerankModel:
    """A reranker that was found: it is loaded when it is first used, and kept."""

    def __init__(
        self, model: ResolvedModel, trusted: Sequence[str], devices: Sequence[Device], leases: Leases, precision: str
    ) -> None:
        self.name = model.name
        self._load = functools.cache(partial(load_reranker, model, trusted=tuple(trusted)))
        self._devices = tuple(devices)
        self._leases = leases
        dtype = self._devices[0].dtype(precision)
        self._dtype = "float32" if dtype == "int8" else dtype

    def load(self, emit: Emit) -> Reranker:
        """The model on the host, in the precision of the first device."""
        if not self._load.cache_info().currsize:
            emit(ModelLoadStarted(model=self.name))
        return self._load(self._dtype)

    def score(self, query: str, texts: Sequence[str], emit: Emit) -> RerankScores:
        """A score for each text; the higher, the better it answers the query."""
        return rerank(
            query,
            texts,
            self.load(emit),
            lambda: self._load("float32"),
            self._devices,
            self._leases,
            emit,
            reload=self._reload,
        )

    def _reload(self) -> Reranker:
        """The weights that were on a lost device, once more."""
        self._load.cache_clear()
        return self._load(self._dtype)


def rerank(
    query: str,
    texts: Sequence[str],
    reranker: Reranker,
    fp32: Callable[[], Reranker],
    devices: Sequence[Device],
    leases: Leases,
    emit: Emit,
    *,
    reload: Callable[[], Reranker] | None = None,
) -> RerankScores:
    """A score for each text.

    Computed on the first device; on the next if that one is lost, with the weights that `reload` gives, and at last on
    the CPU, in fp32.
    """
    for device in devices:
        if device.lost is not None:
            continue
        try:
            return _rerank_on(device, query, texts, reranker, fp32, leases, emit)
        except (RuntimeError, DevicesLostError) as error:
            if device.lost is None and not device.is_lost(error):
                raise
            device.retire(in_one_line(error))
        lost = {"reason": device.lost, "error": device.lost}
        details = {"model": reranker.name, "device": device.name, **lost, "rows": len(texts)}
        emit(Mitigated(kind=DEVICE_LOST.kind, details=details))
        if reload is None:
            break
        reranker = reload()
    return _rerank_on(CpuDevice(), query, texts, fp32(), fp32, leases, emit)


def _rerank_on(
    device: Device,
    query: str,
    texts: Sequence[str],
    reranker: Reranker,
    fp32: Callable[[], Reranker],
    leases: Leases,
    emit: Emit,
) -> RerankScores:
    def report(mitigation: Mitigation, details: dict[str, Any]) -> None:
        emit(Mitigated(kind=mitigation.kind, details={"model": reranker.name, **details}))

    def is_bad(rows: np.ndarray) -> np.ndarray:
        return np.asarray(~np.isfinite(rows).all(axis=1))

    started = time.perf_counter()
    pairs = reranker.pairs(query, texts)
    with ExitStack() as stack:
        lease = stack.enter_context(leases.lease(reranker.name, [device], emit))
        placement = lease.occupy(Placement, lambda: place(reranker, [device], "none", report))
        seats = placement.seats if reranker.works_apart else placement.seats[:1]
        workers = [Worker(model, seat, fp32, report, is_bad=is_bad) for model, seat in seats]
        for worker in workers:
            stack.callback(worker.close)
        scores, batches = _score(pairs, workers)
    return RerankScores(
        scores=scores,
        device=device.name,
        dtype=reranker.dtype,
        tokens=int(pairs.lengths.sum()),
        truncated=int(pairs.overlong.sum()),
        batches=batches,
        seconds=time.perf_counter() - started,
    )


def _score(pairs: TokenizedTexts, workers: Sequence[Worker]) -> tuple[np.ndarray, int]:
    """Scores of all pairs, on all workers; the number of batches, too."""
    count = len(pairs.rows)
    scores, done = np.empty(count, np.float32), []
    budget = workers[0].device.fixed_budget_tokens
    keys = np.stack([np.zeros(count, np.uint64), np.arange(count, dtype=np.uint64)], axis=1)
    queue = BatchQueue(
        iter([Window(keys, pairs, 0.0)] if count else []),
        BatchLimits(budget or BATCH_TOKENS, fixed=budget is not None),
        on_window=lambda window: None,
        may_continue=lambda: True,
    )

    def work(worker: Worker) -> None:
        # alone on the host it may use all cores; several share them out
        is_alone = len(workers) == 1 and not worker.device.has_ceiling
        with nullcontext() if is_alone else worker.device.computing():
            while taken := queue.take(worker.rows_that_fit):
                scores[taken.batch.rows] = worker.encode(pairs, taken.batch).vectors[:, 0]
                done.append(len(taken.batch.rows))
                queue.done()

    if len(workers) == 1:
        work(workers[0])
    else:
        run_together([partial(work, worker) for worker in workers], queue.stop)
    return scores, len(done)
