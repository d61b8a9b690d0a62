from __future__ import annotations

import numpy as np
import pytest

from ultimate_embedder.batching import plan_batches


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_in_exactly_one_batch_under_the_budget(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 600, rng.integers(1, 500))
    batches = plan_batches(lengths, 1024)
    assert sorted(np.concatenate([batch.rows for batch in batches])) == list(range(len(lengths)))
    for batch in batches:
        assert batch.longest == lengths[batch.rows].max()
        assert batch.padded_tokens <= 1024


def test_a_row_longer_than_the_budget_goes_alone() -> None:
    batches = plan_batches(np.array([5, 5000, 5]), 100)
    assert [batch.rows.tolist() for batch in batches] == [[1], [0, 2]]


def test_the_longest_batch_comes_first() -> None:
    longest = [batch.longest for batch in plan_batches(np.arange(1, 400), 512)]
    assert longest == sorted(longest, reverse=True)


def test_padding_stays_under_two_percent_on_a_thousand_realistic_lengths() -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(4.8, 0.6, 1000).astype(int), 3, 256)
    batches = plan_batches(lengths, 2048)
    assert sum(batch.padded_tokens for batch in batches) < 1.02 * lengths.sum()


def test_nothing_gives_no_batches() -> None:
    assert plan_batches(np.array([], int), 100) == []
