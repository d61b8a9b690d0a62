"""Simulated accelerators: real torch devices with real capacities, on a machine that has none.

They run the lines that a card would run, so that a Kaggle run can be rehearsed on a laptop, and so that the
tests exercise every path that a GPU takes.
"""

from ultimate_embedder.devices.simulated.accelerator import (
    SIMULATED,
    SimulatedControls,
    environment_for_child,
    simulate,
)

__all__ = ["SIMULATED", "SimulatedControls", "environment_for_child", "simulate"]
