"""A batch on its way: given to a device, and come back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ultimate_embedder.devices import Fetch, Mark
from ultimate_embedder.models import TokenizedTexts
from ultimate_embedder.types import MemorySnapshot

UNIT_NORM_TOLERANCE = 0.01


@dataclass(frozen=True)
class StartedBatch:
    """A batch that a device has been given and may not have done yet."""

    texts: TokenizedTexts
    rows: np.ndarray
    packed: bool
    whole: bool
    fetch: Fetch
    predicted_bytes: int
    measured_bytes: int
    before: MemorySnapshot
    after: MemorySnapshot
    idle_since: Mark
    begun: Mark
    ended: Mark


@dataclass(frozen=True)
class EncodedBatch:
    """Vectors of a batch, which of them are unusable, and what it took."""

    vectors: np.ndarray
    bad: np.ndarray
    packed: bool
    exact_rows: int
    predicted_bytes: int
    measured_bytes: int
    before: MemorySnapshot
    after: MemorySnapshot
    waited: float
    """How long the device had nothing to do before it."""
    seconds: float


def bad_rows(vectors: np.ndarray, unit_norm: bool) -> np.ndarray:
    """Mark vectors that cannot be right: not finite, of no length, or not of length one where they must be."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(vectors, axis=1)
    bad = ~np.isfinite(norms) | (norms == 0)
    if unit_norm:
        bad |= ~(np.abs(norms - 1) < UNIT_NORM_TOLERANCE)
    return np.asarray(bad)
