"""How much of a card may be used."""

from __future__ import annotations

from dataclasses import dataclass

T4_CEILING_BYTES = 12 * 10**9
LARGEST_T4_LIKE_BYTES = 16 << 30  # cards of 16 GB and less; what they report varies by a few per cent


@dataclass(frozen=True)
class MemoryLimits:
    """How much of each device may be used: the first one up to a ceiling, each one up to a margin below its total."""

    gpu0_ceiling_bytes: int | None = None
    """Asked for; else 12 GB on a card of T4's size, and on a larger one the margin alone."""
    safety_margin: float = 0.08

    def ceiling_bytes(self, index: int, total_bytes: int) -> int:
        """The most that device `index` may hold, on reserved + context + external bytes."""
        below_total = int(total_bytes * (1 - self.safety_margin))
        ceiling = self.gpu0_ceiling_bytes
        if ceiling is None and total_bytes <= LARGEST_T4_LIKE_BYTES:
            ceiling = T4_CEILING_BYTES
        return below_total if index or ceiling is None else min(ceiling, below_total)
