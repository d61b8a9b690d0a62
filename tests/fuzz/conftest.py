"""Profiles of the fuzz tests: few fixed examples in `make test`, new ones for as long as asked in `make torture`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "short", max_examples=20, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
settings.register_profile(
    "long", max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
settings.load_profile(os.environ.get("FUZZ_PROFILE", "short"))
