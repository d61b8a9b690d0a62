"""Cards that people have: what their makers say of them. Data for estimates, no promise of what a run reaches."""

from __future__ import annotations

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


CARDS: tuple[Card, ...] = (
    Card("p100", "Tesla P100 PCIe", (6, 0), 16 << 30, 18.7 * TERA, 9.3 * TERA, 732 * GIGA, "NVIDIA P100 datasheet"),
    Card("v100", "Tesla V100 PCIe", (7, 0), 16 << 30, 112 * TERA, 14 * TERA, 900 * GIGA, "NVIDIA V100 datasheet"),
    Card("t4", "Tesla T4", (7, 5), 15_828_320_256, 65 * TERA, 8.1 * TERA, 320 * GIGA, "NVIDIA T4 datasheet"),
    Card("a100-40", "A100 40GB", (8, 0), 40 << 30, 312 * TERA, 19.5 * TERA, 1555 * GIGA, "NVIDIA A100 datasheet"),
    Card("a100-80", "A100 80GB", (8, 0), 80 << 30, 312 * TERA, 19.5 * TERA, 1935 * GIGA, "NVIDIA A100 datasheet"),
    Card("a10", "A10", (8, 6), 24 << 30, 125 * TERA, 31.2 * TERA, 600 * GIGA, "NVIDIA A10 datasheet"),
    Card("l4", "L4", (8, 9), 24 << 30, 121 * TERA, 30.3 * TERA, 300 * GIGA, "NVIDIA L4 datasheet"),
    Card("h100", "H100 PCIe", (9, 0), 80 << 30, 756 * TERA, 51 * TERA, 2000 * GIGA, "NVIDIA H100 datasheet"),
)


def peak_half_flops(capability: tuple[int, int]) -> float:
    """The rate of the fastest known card of this generation, or of the one before it."""
    known = [card for card in CARDS if card.capability <= capability] or [CARDS[0]]
    newest = max(card.capability for card in known)
    return max(card.half_flops for card in known if card.capability == newest)


def find_card(key: str) -> Card | None:
    """The card with this key."""
    return next((card for card in CARDS if card.key == key.lower()), None)
