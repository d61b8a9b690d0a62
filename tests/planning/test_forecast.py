"""What a card will hold, as a function of weights, batches and the memory model."""

from __future__ import annotations

from ultimate_embedder.batching import MemoryModel
from ultimate_embedder.planning import BatchShape, CardRoom, MemoryModels, WeightBytes, forecast_card

MB = 10**6
PER_TOKEN = 10_000


def models(*, uniform: float = 1.0) -> MemoryModels:
    def padded(rows: int, length: int) -> int:
        return rows * length * PER_TOKEN

    return MemoryModels(MemoryModel(padded), MemoryModel(lambda rows, length: int(padded(rows, length) * uniform)))


def card(ceiling_mb: int, outside_mb: int = 0) -> CardRoom:
    return CardRoom(2 * ceiling_mb * MB, ceiling_mb * MB, outside_mb * MB)


WEIGHTS = WeightBytes(50 * MB, layers=10, of_layers=40 * MB)


def test_a_roomy_card_holds_weights_workspace_and_the_largest_batch() -> None:
    found = forecast_card(WEIGHTS, [BatchShape(8, 512), BatchShape(64, 16)], models(), card(1000))
    assert found.fits
    assert (found.in_parts, found.too_large, found.batches) == (0, 0, 2)
    assert found.peak_bytes == 50 * MB + card(1000).workspace_bytes + 8 * 512 * PER_TOKEN
    assert found.peak_bytes < found.reserved_bytes <= 1000 * MB


def test_a_batch_of_one_length_takes_what_it_takes() -> None:
    shapes = [BatchShape(8, 512, uniform=True), BatchShape(6, 512)]
    found = forecast_card(WEIGHTS, shapes, models(uniform=0.5), card(1000))
    assert found.peak_bytes == 50 * MB + card(1000).workspace_bytes + 6 * 512 * PER_TOKEN


def test_what_others_hold_makes_batches_smaller() -> None:
    shapes = [BatchShape(32, 512, count=3)]
    assert forecast_card(WEIGHTS, shapes, models(), card(500)).in_parts == 0
    crowded = forecast_card(WEIGHTS, shapes, models(), card(500, outside_mb=300))
    assert (crowded.fits, crowded.in_parts, crowded.batches) == (True, 3, 3)
    assert crowded.reserved_bytes + 300 * MB <= 500 * MB


def test_a_text_that_has_no_room_is_told_with_the_longest_that_has() -> None:
    found = forecast_card(WEIGHTS, [BatchShape(1, 32768, count=2), BatchShape(4, 2048)], models(), card(200))
    assert not found.fits
    assert (found.too_large, found.longest_that_fits, found.streamed) == (2, 2048, False)


def test_weights_without_room_are_streamed_with_two_layers_on_the_card() -> None:
    found = forecast_card(WEIGHTS, [BatchShape(1, 64)], models(), card(40))
    assert found.streamed
    assert not found.fits
    assert WEIGHTS.streamed == 50 * MB - 40 * MB + 8 * MB
    assert WeightBytes(50 * MB).streamed == 50 * MB


def test_a_group_of_cards_splits_its_batches() -> None:
    one = forecast_card(WEIGHTS, [BatchShape(8, 512)], models(), card(1000))
    two = forecast_card(WEIGHTS, [BatchShape(8, 512)], models(), card(1000), lanes=2)
    assert one.peak_bytes - two.peak_bytes == 4 * 512 * PER_TOKEN


def test_models_beside_it_count() -> None:
    beside = forecast_card(WEIGHTS, [BatchShape(8, 512)], models(), card(1000), beside_bytes=30 * MB)
    alone = forecast_card(WEIGHTS, [BatchShape(8, 512)], models(), card(1000))
    assert beside.peak_bytes - alone.peak_bytes == 30 * MB
