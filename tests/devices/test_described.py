"""Cards by their names and sizes, for a plan."""

from __future__ import annotations

import pytest

from ultimate_embedder.devices import MemoryLimits, describe_cpu, describe_gpus
from ultimate_embedder.devices.cards import CARDS, card_of_hardware, find_card
from ultimate_embedder.errors import UsageError

LIMITS = MemoryLimits()


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("t4x2", ["Tesla T4", "Tesla T4"]),
        ("2xT4", ["Tesla T4", "Tesla T4"]),
        ("l4", ["L4"]),
        ("a100-40", ["A100 40GB"]),
        ("rtx3090", ["GeForce RTX 3090"]),
        ("4090x2", ["GeForce RTX 4090", "GeForce RTX 4090"]),
        ("t4+l4", ["Tesla T4", "L4"]),
        ("2x15GiB", ["card of 15 GiB", "card of 15 GiB"]),
    ],
)
def test_a_word_describes_cards(word: str, names: list[str]) -> None:
    cards = describe_gpus(word, LIMITS)
    assert [card.hardware for card in cards] == names
    assert [card.name.rpartition(":")[2] for card in cards] == [str(number) for number in range(len(cards))]
    assert not any(card.here for card in cards)


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("t4x0", "1 to 64"),
        ("t4x99999999999999999999", "1 to 64"),
        ("t4x40+l4x40", "80 cards"),
        ("a1000", "Did you mean a100"),
        ("rtx409", "Did you mean rtx4090"),
        ("tx4", "Did you mean t4"),
        ("", "neither a known card nor a size"),
        ("0GiB", "neither a known card nor a size"),
        ("-1xt4", "neither a known card nor a size"),
        ("cpu+t4", "stands alone"),
    ],
)
def test_a_word_that_describes_none_is_refused(word: str, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        describe_gpus(word, LIMITS)


def test_the_first_card_of_a_t4_has_its_ceiling_and_the_second_has_more() -> None:
    first, second = describe_gpus("t4x2", LIMITS)
    assert first.ceiling_bytes == 12 * 10**9 < second.ceiling_bytes < second.total_bytes
    assert (first.dtype("auto"), describe_gpus("l4", LIMITS)[0].dtype("auto")) == ("float16", "bfloat16")
    assert 0 < first.outside_bytes < first.ceiling_bytes - first.usable_bytes + 1


def test_the_cpu_is_that_of_this_machine() -> None:
    (cpu,) = describe_gpus("cpu", LIMITS)
    assert (cpu.name, cpu.has_ceiling, cpu.here, cpu.dtype("auto")) == ("cpu", False, True, "float32")
    assert cpu == describe_cpu()


def test_every_card_has_rates_and_a_source() -> None:
    for card in CARDS:
        assert card.half_flops > card.fp32_flops > 0
        assert card.bandwidth > 0
        assert card.source
        assert all(find_card(word) is card for word in (card.key, card.key.upper(), *card.aliases))


@pytest.mark.parametrize(
    ("name", "total_gib", "key"),
    [
        ("Tesla T4", 15, "t4"),
        ("NVIDIA L4", 22, "l4"),
        ("NVIDIA A100-SXM4-40GB", 39, "a100-40"),
        ("NVIDIA A100-SXM4-80GB", 79, "a100-80"),
        ("NVIDIA A10G", 22, "a10g"),
        ("NVIDIA GeForce RTX 4090", 23, "rtx4090"),
        ("NVIDIA H100 PCIe", 79, "h100"),
        ("Tesla P100-PCIE-16GB", 16, "p100"),
    ],
)
def test_a_card_is_known_by_what_its_driver_calls_it(name: str, total_gib: int, key: str) -> None:
    assert card_of_hardware(name, total_gib << 30) is find_card(key)
    assert card_of_hardware("NVIDIA GeForce GTX 1060", 6 << 30) is None
