"""Score candidates with a reranker: under a lease, in batches that fit, with the ladder behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from ultimate_embedder.batching import BATCH_TOKENS, Batch, plan_batches
from ultimate_embedder.devices import Device, Leases
from ultimate_embedder.events import Emit, Mitigated
from ultimate_embedder.execution.ladder import Mitigation
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
) -> np.ndarray:
    """A score for each text; the higher, the better it answers the query."""

    def report(mitigation: Mitigation, details: dict[str, Any]) -> None:
        emit(Mitigated(kind=mitigation.kind, details={"model": reranker.name, **details}))

    pairs = reranker.pairs(query, texts)
    scores = np.empty(len(texts), np.float32)
    with leases.lease(reranker.name, devices, emit) as lease:
        placement = lease.occupy(Placement, lambda: place(reranker, devices, "none", report))
        model, device = placement.seats[0]
        worker = Worker(model, device, fp32, report, is_bad=lambda rows: ~np.isfinite(rows).all(axis=1))
        with closing(worker):
            for planned in plan_batches(pairs.lengths, device.fixed_budget_tokens or BATCH_TOKENS):
                rest: Batch | None = planned
                while rest is not None:
                    batch, rest = rest.split(worker.rows_that_fit(rest, len(planned.rows)), pairs.lengths)
                    scores[batch.rows] = worker.encode(pairs, batch).vectors[:, 0]
    return scores
