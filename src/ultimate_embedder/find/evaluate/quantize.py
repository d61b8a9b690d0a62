"""What Qdrant's quantization keeps of vectors: the values that it compares instead of the originals.

int8     scalar quantization with a quantile of 0.99, as `upload --quantization scalar` asks for: 128 steps between the
         bounds of nearly all values
binary   one bit per dimension, the sign, for documents and queries
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

QUANTILE = 0.99
STEPS = 127
SAMPLE_ROWS = 5_000  # vectors from which the bounds are taken
FEWEST_ROWS = 127  # with fewer the bounds are those of all values


@dataclass(frozen=True)
class Int8:
    """The bounds of a scalar quantization."""

    low: float
    high: float

    @classmethod
    def of(cls, sample: np.ndarray) -> Int8:
        """The bounds of a sample of vectors. As in Qdrant, 0.5 % of their *number* are the values cut at each end."""
        values = np.sort(sample, axis=None)
        if len(sample) < FEWEST_ROWS:
            return cls(float(values[0]), float(values[-1]))
        # in float32, as in the engine: of 3,000 vectors it cuts 14 values, not 15
        share = (np.float32(1) - np.float32(QUANTILE)) / np.float32(2)
        cut = max(1, min((len(values) - 1) // 2, int(np.float32(len(sample)) * share)))
        return cls(float(values[cut + 1]), float(values[len(values) - cut - 1]))

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Vectors as they are after quantization and back."""
        step = (self.high - self.low) / STEPS
        if step <= 0:
            return np.full_like(vectors, self.low)
        levels = np.clip(np.round((vectors - self.low) / step), 0, STEPS)
        return np.asarray(levels * step + self.low, np.float32)


def binary(vectors: np.ndarray) -> np.ndarray:
    """1 where a value is above 0, else -1: their dot product orders as the number of equal bits does."""
    return np.asarray(np.where(vectors > 0, np.float32(1), np.float32(-1)))
