from __future__ import annotations

from ultimate_embedder.devices.cards import CARDS, find_card, peak_half_flops


def test_every_card_has_its_figures_and_where_they_are_from() -> None:
    assert len({card.key for card in CARDS}) == len(CARDS)
    for card in CARDS:
        assert card.source
        assert card.half_flops > card.fp32_flops > 10**12
        assert card.bandwidth > 10**11


def test_a_card_is_found_by_its_key() -> None:
    card = find_card("T4")
    assert card is not None
    assert card.capability == (7, 5)
    assert find_card("t5") is None


def test_the_rate_of_a_generation_is_that_of_its_fastest_card() -> None:
    assert peak_half_flops((7, 5)) == 65e12
    assert peak_half_flops((8, 0)) == 312e12
    assert peak_half_flops((12, 0)) == peak_half_flops((9, 0)) == 756e12
    assert peak_half_flops((5, 0)) == peak_half_flops((6, 0))
