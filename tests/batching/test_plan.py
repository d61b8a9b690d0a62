from __future__ import annotations

import numpy as np
import pytest

from ultimate_embedder.batching import Batch, card_batch_tokens, plan_batches, window_budget


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


def test_batches_depend_on_what_the_texts_are_and_not_on_their_order() -> None:
    rng = np.random.default_rng(1)
    lengths, keys = rng.integers(1, 20, 300), rng.integers(0, 2**63, (300, 2)).astype(np.uint64)
    shuffled = rng.permutation(300)
    plain = [keys[batch.rows].tolist() for batch in plan_batches(lengths, 100, keys)]
    again = [keys[shuffled][batch.rows].tolist() for batch in plan_batches(lengths[shuffled], 100, keys[shuffled])]
    assert plain == again


def test_a_batch_may_have_at_most_so_many_rows() -> None:
    assert {len(batch.rows) for batch in plan_batches(np.full(64, 2), 1024, most_rows=16)} == {16}


@pytest.mark.parametrize(("rows", "parts"), [(10, [10]), (9, [5, 5]), (4, [4, 3, 3]), (1, [1] * 10), (0, [1] * 10)])
def test_a_batch_is_split_into_parts_that_fit_of_about_the_same_size(rows: int, parts: list[int]) -> None:
    lengths = np.arange(19, 9, -1)
    rest: Batch | None = Batch(np.arange(10), 19)
    found = []
    while rest is not None:
        part, rest = rest.split(rows, lengths)
        found.append(len(part.rows))
        assert part.longest == lengths[part.rows].max()
    assert found == parts


def test_a_small_window_is_cut_into_several_batches_and_a_large_one_by_the_budget() -> None:
    assert window_budget(np.full(10, 100)) == 2048
    assert window_budget(np.full(400, 100)) == 5000
    assert window_budget(np.full(4096, 100)) == 16_384


def test_padding_can_be_avoided_down_to_half_the_budget() -> None:
    lengths = np.array([100] * 6 + [60] * 20)
    plain, tight = plan_batches(lengths, 1000), plan_batches(lengths, 1000, avoid_padding=True)
    assert [len(batch.rows) for batch in plain][:1] == [10]
    assert [len(batch.rows) for batch in tight][:2] == [6, 16]
    assert sum(batch.padded_tokens for batch in tight) < sum(batch.padded_tokens for batch in plain)
    assert len(plan_batches(np.array([100, 50, 25, 12]), 400, avoid_padding=True)[0].rows) == 2


MINILM, BGE_M3 = (6, 10_646_784), (24, 302_309_376)  # layers and their weights


@pytest.mark.parametrize(
    ("model", "card_flops", "tokens"),
    [
        (MINILM, 65e12, 16_384),  # T4
        (MINILM, 312e12, 32_768),  # A100
        (MINILM, 756e12, 131_072),  # H100
        (BGE_M3, 756e12, 16_384),
        ((2, 1000), 756e12, 131_072),
    ],
)
def test_small_models_get_larger_batches_on_fast_cards(model: tuple[int, int], card_flops: float, tokens: int) -> None:
    assert card_batch_tokens(*model, card_flops) == tokens
