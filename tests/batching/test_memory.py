from __future__ import annotations

import pytest

from ultimate_embedder.batching import MemoryModel


def peak(rows: int, length: int) -> int:
    """A forward as transformers are: something fixed, hidden states linear in tokens, a mask quadratic in length."""
    return 1_000_000 + rows * (5000 * length + 3 * length * length)


@pytest.mark.parametrize("length", [5, 8, 33, 100, 128, 300, 511])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_two_points_at_each_power_of_two_give_the_whole_surface(rows: int, length: int) -> None:
    predicted = MemoryModel(peak).allocated_bytes(rows, length)
    assert predicted == pytest.approx(peak(rows, max(length, 8)), rel=1e-6)


@pytest.mark.parametrize("length", [16, 90, 256])
def test_the_most_rows_fill_what_is_allowed_and_no_more(length: int) -> None:
    model = MemoryModel(peak)
    rows = model.most_rows(length, 50_000_000)
    assert model.allocated_bytes(rows, length) <= 50_000_000 < model.allocated_bytes(rows + 1, length)


def test_one_row_is_always_tried() -> None:
    assert MemoryModel(peak).most_rows(512, 0) == 1


def test_measured_peaks_correct_the_prediction_of_their_lengths_only() -> None:
    model = MemoryModel(peak)
    model.observe(10, 100, "padded", allocated_bytes=2 * peak(10, 100))
    assert model.allocated_bytes(20, 120) == pytest.approx(2 * peak(20, 120), rel=0.01)
    model.observe(10, 300, "padded", allocated_bytes=peak(10, 300))
    assert model.allocated_bytes(20, 120) == pytest.approx(2 * peak(20, 120), rel=0.01)


def test_other_lengths_are_expected_to_be_like_the_nearest_that_was_measured_but_not_counted_on() -> None:
    model = MemoryModel(peak)
    model.observe(10, 100, "packed", allocated_bytes=peak(10, 100) // 2)
    assert model.allocated_bytes(20, 300, "packed") == pytest.approx(peak(20, 300) / 2, rel=0.01)
    assert model.most_rows(300, 50_000_000, "packed") == MemoryModel(peak).most_rows(300, 50_000_000)
    assert model.most_rows(100, 50_000_000, "packed") > MemoryModel(peak).most_rows(100, 50_000_000)


def test_batches_without_padding_are_learned_apart() -> None:
    model = MemoryModel(peak)
    model.observe(10, 100, "uniform", allocated_bytes=peak(10, 100) // 2)
    assert model.allocated_bytes(10, 100, "uniform") == pytest.approx(peak(10, 100) / 2, rel=0.01)
    assert model.allocated_bytes(10, 100, "padded") == pytest.approx(peak(10, 100), rel=0.01)


def test_rows_that_may_all_be_of_one_length_are_not_more_than_such_a_batch_can_have() -> None:
    model = MemoryModel(peak)
    model.observe(10, 100, "packed", allocated_bytes=peak(10, 100) // 2)
    model.observe(10, 100, "uniform", allocated_bytes=peak(10, 100))
    assert model.most_rows(100, 50_000_000, "packed") == MemoryModel(peak).most_rows(100, 50_000_000)


def test_reserved_is_learned_from_forwards_that_made_it_grow() -> None:
    model = MemoryModel(peak)
    model.observe_reserved(allocated_bytes=100, reserved_bytes=140)
    assert model.reserve_ratio == pytest.approx(1.4)
    model.observe_reserved(allocated_bytes=100, reserved_bytes=10_000)
    assert model.reserve_ratio <= 2.0


def test_a_point_is_predicted_once() -> None:
    asked = []

    def counting(rows: int, length: int) -> int:
        asked.append((rows, length))
        return peak(rows, length)

    model = MemoryModel(counting)
    for length in (70, 80, 90, 128):
        model.most_rows(length, 10**9)
    assert sorted(set(asked)) == sorted(asked)
    assert {length for _, length in asked} == {64, 128}
