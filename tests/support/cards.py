"""Which cards the tests use that can run on real ones: two simulated T4s, unless the environment names others."""

from __future__ import annotations

import os

VARIABLE = "ULTIMATE_EMBEDDER_TEST_DEVICES"
DEVICES = os.environ.get(VARIABLE, "simulated:2x15GiB")
SIMULATED = DEVICES.startswith("simulated:")
