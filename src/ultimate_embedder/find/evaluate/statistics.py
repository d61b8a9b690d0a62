"""How sure a figure is: bootstrap intervals, paired randomisation tests, and their correction for many comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BOOTSTRAP_SAMPLES = 5_000
RANDOM_SIGNS = 10_000
CONFIDENCE = 0.95
SIGNIFICANT = 0.05
BLOCK_SAMPLES = 500
ROUNDING = 1e-12  # sums of the same numbers in another order


@dataclass(frozen=True)
class Interval:
    """A 95 % interval."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Difference:
    """The mean difference of two rows over the same queries, its interval, and how likely it is without a cause."""

    mean: float
    interval: Interval
    p: float
    p_corrected: float | None = None
    """Corrected for the number of comparisons (Holm); None if there was one."""
    better: int = 0
    worse: int = 0
    equal: int = 0

    @property
    def is_significant(self) -> bool:
        """Whether it is below 5 %, after the correction if there is one."""
        return (self.p if self.p_corrected is None else self.p_corrected) < SIGNIFICANT


def bootstrap_intervals(values: np.ndarray, seed: int) -> list[Interval]:
    """The interval of the mean of each column, from resampled rows (queries)."""
    queries = len(values)
    random = np.random.default_rng(seed)
    means = np.empty((BOOTSTRAP_SAMPLES, values.shape[1]))
    for start in range(0, BOOTSTRAP_SAMPLES, BLOCK_SAMPLES):
        counts = random.multinomial(queries, np.full(queries, 1 / queries), size=BLOCK_SAMPLES)
        means[start : start + BLOCK_SAMPLES] = counts @ values / queries
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return [Interval(float(least), float(most)) for least, most in zip(low, high, strict=True)]


def compare(values: np.ndarray, baseline: np.ndarray, seed: int) -> list[Difference]:
    """Compare each column with the baseline, query by query; p values are corrected for the number of columns."""
    if not values.shape[1]:
        return []
    differences = values - baseline[:, None]
    intervals = bootstrap_intervals(differences, seed)
    p_values = randomisation_test(differences, seed)
    corrected = holm(p_values) if len(p_values) > 1 else [None] * len(p_values)
    return [
        Difference(
            mean=float(column.mean()),
            interval=interval,
            p=p,
            p_corrected=after,
            better=int((column > ROUNDING).sum()),
            worse=int((column < -ROUNDING).sum()),
            equal=int((np.abs(column) <= ROUNDING).sum()),
        )
        for column, interval, p, after in zip(differences.T, intervals, p_values, corrected, strict=True)
    ]


def randomisation_test(differences: np.ndarray, seed: int) -> list[float]:
    """Two-sided p of each column: how often random signs give a mean as far from 0 as the one that was seen.

    All combinations of signs are tried where there are few queries, else a random sample of them.
    """
    queries = len(differences)
    seen = np.abs(differences.sum(axis=0)) - ROUNDING
    if 2**queries <= RANDOM_SIGNS:
        bits = (np.arange(2**queries)[:, None] >> np.arange(queries)) & 1
        as_far = (np.abs((1 - 2 * bits) @ differences) >= seen).mean(axis=0)
        return [float(p) for p in as_far]
    random = np.random.default_rng(seed)
    as_far = np.zeros(differences.shape[1])
    for _ in range(0, RANDOM_SIGNS, BLOCK_SAMPLES):
        signs = 1 - 2 * random.integers(0, 2, (BLOCK_SAMPLES, queries))
        as_far += (np.abs(signs @ differences) >= seen).sum(axis=0)
    return [float(p) for p in (as_far + 1) / (RANDOM_SIGNS + 1)]


def holm(p_values: Sequence[float]) -> list[float]:
    """P values corrected after Holm: the chance of one false alarm among all is below 5 % where they are."""
    count = len(p_values)
    corrected = [0.0] * count
    largest = 0.0
    for place, index in enumerate(sorted(range(count), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, p_values[index] * (count - place)))
        corrected[index] = largest
    return corrected
