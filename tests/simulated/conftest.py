"""Simulated devices for these tests, which run in a process of their own.

On real cards (`make gpu-check`) nothing is simulated: the simulator would be torch's accelerator in place of the card.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cards import SIMULATED
from tests.support.predictions import shared_predictions
from ultimate_embedder.devices.simulated import SimulatedControls, simulate

GiB = 1 << 30


@pytest.fixture(scope="session", autouse=True)
def predicted_once() -> Iterator[None]:
    """A third of the time of a small run is its predictions, and most tests run the same few models."""
    with shared_predictions():
        yield


@pytest.fixture(scope="session")
def watched() -> SimulatedControls | None:
    """The simulator, which also notices when the host reads a result before it has arrived; None on real cards."""
    if not SIMULATED:
        return None
    controls = simulate([GiB])
    controls.watch_host_memory()
    return controls


@pytest.fixture(autouse=True)
def no_races(watched: SimulatedControls | None) -> Iterator[None]:
    """No wait is missing, even where a run completes: vectors that were read too early would be computed again."""
    if watched is None:
        yield
        return
    watched.take_races()
    yield
    assert watched.take_races() == []


@pytest.fixture
def two_t4s() -> Iterator[SimulatedControls]:
    """Two cards of 15 GiB; afterwards nothing may be left on them."""
    controls = simulate([15 * GiB, 15 * GiB])
    yield controls
    controls.clear_workspaces()
    assert [controls.usage(device)["allocated"] for device in range(2)] == [0, 0]
