"""How fast a card can be at best, from its data sheet: each kernel takes what its arithmetic or its bytes take.

What a card really reaches is assumed: shares of the peak rate and of the bandwidth, stated with every estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ultimate_embedder.planning.estimates import Range

LAUNCH_ON_CARD_S = 3e-6  # assumed: between two kernels
LAUNCH_ON_HOST_S = 5e-6  # assumed: what the driver adds to torch's own work for each launch
OF_PEAK_RATE = Range(0.30, 0.45)  # assumed: what matrix products reach of it
OF_BANDWIDTH = Range(0.70, 0.85)  # assumed: what other kernels reach of it
ROOFLINE_BASIS = "roofline of the card, assumed: 30 to 45 % of its peak rate, 70 to 85 % of its bandwidth"


class CountedForward(Protocol):
    """The kernels of a forward."""

    @property
    def calls(self) -> int:
        """Kernels that the host launches."""
        ...

    def seconds(self, flops_per_second: float, bytes_per_second: float, launch_seconds: float = 0.0) -> float:
        """What they take at these rates."""
        ...


@dataclass(frozen=True)
class PeakRates:
    """What a card can do at best, by its data sheet, per second."""

    flops: float
    bandwidth: float


def batch_seconds(forward: CountedForward, card: PeakRates) -> Range:
    """What a card takes for a batch."""
    fast = forward.seconds(card.flops * OF_PEAK_RATE.high, card.bandwidth * OF_BANDWIDTH.high, LAUNCH_ON_CARD_S)
    slow = forward.seconds(card.flops * OF_PEAK_RATE.low, card.bandwidth * OF_BANDWIDTH.low, LAUNCH_ON_CARD_S)
    return Range(fast, slow)


def launch_seconds(forward: CountedForward, of_torch_s: float) -> float:
    """What the host takes to launch a batch; `of_torch_s` is torch's own work."""
    return of_torch_s + forward.calls * LAUNCH_ON_HOST_S
