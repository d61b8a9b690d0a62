"""When a device began a batch, by the clock of the host."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ultimate_embedder.devices import DeviceClock
from ultimate_embedder.devices.clock import LATEST


@dataclass(frozen=True)
class At:
    """A point that the device passed at this time of its own clock."""

    seconds: float

    def seconds_since(self, earlier: At) -> float:
        return self.seconds - earlier.seconds


def test_batches_that_the_host_notices_late_began_when_the_device_began_them() -> None:
    now = 1000.0
    clock = DeviceClock(At(7.0), lambda: now)
    now = 1003.0  # the device is at 10: the host has waited for it
    assert clock.began(At(8.0), 2.0) == pytest.approx(1001.0)
    now = 1009.0  # the device ended this batch at 12, and the host was busy meanwhile
    assert clock.began(At(10.0), 2.0) == pytest.approx(1003.0)


def test_clocks_that_drift_apart_are_brought_together_again() -> None:
    now = 0.0
    clock = DeviceClock(At(0.0), lambda: now)
    for batch in range(3 * LATEST):
        now = (batch + 1) * 1.01  # the clock of the device is slow
        began = clock.began(At(float(batch)), 1.0)
    assert began == pytest.approx(now - 1.0, abs=LATEST * 0.011)
