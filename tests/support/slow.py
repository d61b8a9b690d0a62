"""Variants of tests that only `make torture` runs."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A parameter, or several, of a test whose other parameters are enough for `make test`."""
    return pytest.param(*values, marks=pytest.mark.slow)
