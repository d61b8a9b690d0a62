"""Score candidates with a reranker: under a lease, in batches that fit, with the ladder behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from ultimate_embedder.batching import BATCH_TOKENS, Batch, plan_batches
from ultimate_embedder.devices import CpuDevice, Device, Leases, in_one_line
from ultimate_embedder.errors import DevicesLostError
from ultimate_embedder.events import Emit, Mitigated
from ultimate_embedder.execution.ladder import DEVICE_LOST, Mitigation
from ultimate_embedder.execution.placement import Placement, place
from ultimate_embedder.execution.worker import Worker
from ultimate_embedder.models import Reranker


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
) -> np.ndarray:
    """A score for each text; the higher, the better it answers the query.

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
) -> np.ndarray:
    def report(mitigation: Mitigation, details: dict[str, Any]) -> None:
        emit(Mitigated(kind=mitigation.kind, details={"model": reranker.name, **details}))

    pairs = reranker.pairs(query, texts)
    scores = np.empty(len(texts), np.float32)
    with leases.lease(reranker.name, [device], emit) as lease:
        placement = lease.occupy(Placement, lambda: place(reranker, [device], "none", report))
        model, seat = placement.seats[0]
        worker = Worker(model, seat, fp32, report, is_bad=lambda rows: ~np.isfinite(rows).all(axis=1))
        with closing(worker), seat.computing():
            for planned in plan_batches(pairs.lengths, seat.fixed_budget_tokens or BATCH_TOKENS):
                rest: Batch | None = planned
                while rest is not None:
                    batch, rest = rest.split(worker.rows_that_fit(rest, len(planned.rows)), pairs.lengths)
                    scores[batch.rows] = worker.encode(pairs, batch).vectors[:, 0]
    return scores
