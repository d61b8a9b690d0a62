"""Cards that people have: what their makers say of them. Data for estimates, no promise of what a run reaches."""

from __future__ import annotations

import re
from dataclasses import dataclass

TERA, GIGA = 10**12, 10**9


@dataclass(frozen=True)
class Card:
    """A card by its data sheet. Rates are dense peaks, without the factor two of sparse matrices."""

    key: str
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    half_flops: float
    """Of matrix products in fp16 or bf16 with fp32 sums, per second."""
    fp32_flops: float
    bandwidth: float
    """Bytes per second, of its memory."""
    source: str
    aliases: tuple[str, ...] = ()


# memory as the maker says; that of a T4 as its driver reports it
CARDS: tuple[Card, ...] = (
    Card("p100", "Tesla P100 PCIe", (6, 0), 16 << 30, 18.7 * TERA, 9.3 * TERA, 732 * GIGA, "NVIDIA P100 datasheet"),
    Card("v100", "Tesla V100 PCIe", (7, 0), 16 << 30, 112 * TERA, 14 * TERA, 900 * GIGA, "NVIDIA V100 datasheet"),
    Card("t4", "Tesla T4", (7, 5), 15_828_320_256, 65 * TERA, 8.1 * TERA, 320 * GIGA, "NVIDIA T4 datasheet"),
    Card(
        *("a100-40", "A100 40GB", (8, 0), 40 << 30, 312 * TERA, 19.5 * TERA, 1555 * GIGA, "NVIDIA A100 datasheet"),
        aliases=("a100", "a100-40gb"),
    ),
    Card(
        *("a100-80", "A100 80GB", (8, 0), 80 << 30, 312 * TERA, 19.5 * TERA, 1935 * GIGA, "NVIDIA A100 datasheet"),
        aliases=("a100-80gb",),
    ),
    Card("a10", "A10", (8, 6), 24 << 30, 125 * TERA, 31.2 * TERA, 600 * GIGA, "NVIDIA A10 datasheet"),
    Card("a10g", "A10G", (8, 6), 24 << 30, 70 * TERA, 35 * TERA, 600 * GIGA, "NVIDIA A10G datasheet"),
    # of GeForce cards the rate with fp32 sums, half of that with fp16 sums
    Card(
        *("rtx3090", "GeForce RTX 3090", (8, 6), 24 << 30, 71 * TERA, 35.6 * TERA, 936 * GIGA),
        source="NVIDIA Ampere GA102 whitepaper",
        aliases=("rtx-3090", "3090"),
    ),
    Card(
        *("rtx4090", "GeForce RTX 4090", (8, 9), 24 << 30, 165.2 * TERA, 82.6 * TERA, 1008 * GIGA),
        source="NVIDIA Ada whitepaper",
        aliases=("rtx-4090", "4090"),
    ),
    Card("l4", "L4", (8, 9), 24 << 30, 121 * TERA, 30.3 * TERA, 300 * GIGA, "NVIDIA L4 datasheet"),
    Card("h100", "H100 PCIe", (9, 0), 80 << 30, 756 * TERA, 51 * TERA, 2000 * GIGA, "NVIDIA H100 datasheet"),
)


def peak_half_flops(capability: tuple[int, int]) -> float:
    """The rate of the fastest known card of this generation, or of the one before it."""
    known = [card for card in CARDS if card.capability <= capability] or [CARDS[0]]
    newest = max(card.capability for card in known)
    return max(card.half_flops for card in known if card.capability == newest)


def find_card(key: str) -> Card | None:
    """The card with this key or alias."""
    return next((card for card in CARDS if key.lower() in (card.key, *card.aliases)), None)


def card_of_hardware(name: str, total_bytes: int) -> Card | None:
    """The card that a driver calls by this name; of those with several memories, the one with as much."""
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
    named = [card for card in CARDS if all(word in words for word in _model_words(card))]
    return min(named, key=lambda card: abs(card.memory_bytes - total_bytes), default=None)


def _model_words(card: Card) -> list[str]:
    """What of a card's name its driver uses too: neither memory nor the kind of its plug."""
    words = card.name.lower().split()
    return [word for word in words if word not in ("tesla", "pcie", "geforce") and not word.endswith("gb")]
