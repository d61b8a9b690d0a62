"""Compute on the host, in fp32, what a device cannot: in small batches, one thread at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ultimate_embedder.batching import plan_batches
from ultimate_embedder.devices import CPU_BUDGET_TOKENS
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import LoadedModel, TokenizedTexts

# one at a time: two would fight for the cores, and for the memory that each wide batch takes
_computing = OrderedLock("the host", Rank.HOST)


def encode_on_host(fp32: Callable[[], LoadedModel], texts: TokenizedTexts, rows: np.ndarray) -> np.ndarray:
    """The vectors of some rows, in their order; `fp32` gives the model."""
    with _computing:
        encoder = fp32()
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        for batch in plan_batches(texts.lengths[rows], CPU_BUDGET_TOKENS):
            vectors = encoder.forward(encoder.batch(texts, rows[batch.rows])).cpu().numpy()
            parts.append((batch.rows, vectors))
    found = np.empty((len(rows), parts[0][1].shape[1]), parts[0][1].dtype)
    for positions, vectors in parts:
        found[positions] = vectors
    return found
