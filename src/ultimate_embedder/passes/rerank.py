"""Score candidates with a reranker: under a lease, in batches that fit, with the ladder behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ultimate_embedder.batching import BatchCutter
from ultimate_embedder.devices import Device, Leases
from ultimate_embedder.models import Reranker
from ultimate_embedder.passes.placement import Placement, place
from ultimate_embedder.passes.run import ENOUGH_TOKENS
from ultimate_embedder.passes.worker import Report, Worker


def rerank(
    query: str,
    texts: Sequence[str],
    reranker: Reranker,
    exact: Callable[[], Reranker],
    devices: Sequence[Device],
    leases: Leases,
    report: Report,
) -> np.ndarray:
    """A score for each text; the higher, the better it answers the query."""
    pairs = reranker.pairs(query, texts)
    scores = np.empty(len(texts), np.float32)
    with leases.lease(reranker.name, devices) as lease:
        placement: Placement = place(reranker, devices, "none", report)
        lease.resident = placement
        model, device = placement.seats[0]
        worker = Worker(model, device, exact, report, is_bad=lambda rows: ~np.isfinite(rows).all(axis=1))
        cutter = BatchCutter(pairs.lengths, device.fixed_budget_tokens or ENOUGH_TOKENS)
        while batch := cutter.cut(worker.most_rows):
            scores[batch.rows] = worker.encode(pairs, batch).vectors[:, 0]
    return scores
