"""When a device passed its marks, by the clock of the host."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ultimate_embedder.devices.base import Mark

LATEST = 64  # batches: the clocks of host and device drift apart over hours


class DeviceClock:
    """Translates the marks of a device into times of the host.

    A device tells the time between two marks, and the host sees a mark some time after the device has passed it: at
    once where it waits for the device, later where it is busy. The shortest delay of late is taken for none.
    """

    def __init__(self, origin: Mark, now: Callable[[], float] = time.time) -> None:
        self._origin = origin
        self._now = now
        self._starts: deque[float] = deque(maxlen=LATEST)
        """When the origin was passed, by each of the latest batches: never too early."""

    def began(self, begun: Mark, seconds: float) -> float:
        """When the device passed `begun`; it ended what it did then `seconds` later, and that is over."""
        since = begun.seconds_since(self._origin)
        self._starts.append(self._now() - seconds - since)
        return min(self._starts) + since
