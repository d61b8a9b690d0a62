"""How much of a card may be used."""

from __future__ import annotations

from dataclasses import dataclass

T4_CEILING_BYTES = 12 * 10**9
LARGEST_T4_LIKE_BYTES = 16 << 30  # cards of 16 GB and less; what they report varies by a few per cent


@dataclass(frozen=True)
class Ceiling:
    """The most that a device may hold, and what set it."""

    size_bytes: int
    reason: str


@dataclass(frozen=True)
class MemoryLimits:
    """How much of each device may be used: the first one up to a ceiling, each one up to a margin below its total."""

    gpu0_ceiling_bytes: int | None = None
    """Asked for; else 12 GB on a card of T4's size, and on a larger one the margin alone."""
    safety_margin: float = 0.08

    def ceiling_bytes(self, index: int, total_bytes: int) -> int:
        """The most that device `index` may hold."""
        return self.ceiling(index, total_bytes).size_bytes

    def ceiling(self, index: int, total_bytes: int) -> Ceiling:
        """The most that device `index` may hold, on reserved + context + external bytes, and what set it."""
        margin = f"{self.safety_margin:.0%} below its total (--safety-margin)"
        below_total = Ceiling(int(total_bytes * (1 - self.safety_margin)), margin)
        if index:
            return below_total
        if self.gpu0_ceiling_bytes is not None:
            asked = Ceiling(self.gpu0_ceiling_bytes, "--gpu0-ceiling")
            return min(asked, below_total, key=lambda each: each.size_bytes)
        if total_bytes <= LARGEST_T4_LIKE_BYTES:
            usual = Ceiling(T4_CEILING_BYTES, "default for a first GPU of up to 16 GiB (--gpu0-ceiling)")
            return min(usual, below_total, key=lambda each: each.size_bytes)
        return below_total
