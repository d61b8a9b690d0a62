"""A batch that a device computes, and its vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ultimate_embedder.devices import DeviceClock, Fetch, Mark
from ultimate_embedder.execution.ladder import RanOn
from ultimate_embedder.models import TokenizedTexts
from ultimate_embedder.types import MemorySnapshot

UNIT_NORM_TOLERANCE = 0.01


@dataclass(frozen=True)
class StartedBatch:
    """A batch that a device has been given and may not have done yet; what ran it may have moved since."""

    texts: TokenizedTexts
    rows: np.ndarray
    planned_rows: int
    """How many rows it had before memory made it smaller."""
    ran_on: tuple[RanOn, ...]
    """Where its rows are computed, in their order."""
    packed: bool
    whole: bool
    """Whether it ran as it was, without the ladder."""
    fetch: Fetch
    predicted_bytes: int
    measured_bytes: int
    before: MemorySnapshot
    after: MemorySnapshot
    idle_since: Mark
    begun: Mark
    ended: Mark
    clock: DeviceClock
    """Of the device that has it."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.asarray(self.texts.lengths[self.rows])

    def parts(self) -> list[tuple[RanOn, np.ndarray]]:
        """The rows by where they are computed: each place once, with the positions of its rows in the batch."""
        places = [(part.device, part.dtype) for part in self.ran_on for _ in range(part.rows)]
        found = []
        for device, dtype in dict.fromkeys(places):
            positions = np.array([n for n, place in enumerate(places) if place == (device, dtype)])
            found.append((RanOn(device, dtype, len(positions)), positions))
        return found


@dataclass(frozen=True)
class EncodedBatch:
    """Vectors of a batch, which of them are unusable, and what it took."""

    started: StartedBatch
    vectors: np.ndarray
    bad: np.ndarray
    fp32_rows: int
    waited: float
    """How long the device had nothing to do before it."""
    seconds: float
    began: float
    """When its forward began: seconds since 1970."""


def not_finite(vectors: np.ndarray) -> np.ndarray:
    """Mark vectors that are not finite. Sparse vectors may be empty, and of any length."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(~np.isfinite(vectors.sum(axis=1)))


def bad_rows(vectors: np.ndarray, unit_norm: bool) -> np.ndarray:
    """Mark vectors that cannot be right: not finite, of no length, or not of length one where they must be."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(vectors, axis=1)
    bad = ~np.isfinite(norms) | (norms == 0)
    if unit_norm:
        bad |= ~(np.abs(norms - 1) < UNIT_NORM_TOLERANCE)
    return np.asarray(bad)
