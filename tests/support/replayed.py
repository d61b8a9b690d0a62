"""Compare the summary of a run with that of its event log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ultimate_embedder.report.replay import replayed_summary
from ultimate_embedder.summary import RunSummary

NOT_IN_EVENTS = ("versions", "machine", "started_at")


def assert_replays(output: Path) -> RunSummary:
    """Assert that the log of an output gives its summary, in every number; gives the summary."""
    written = RunSummary.model_validate_json((output / "summary.json").read_bytes())
    replayed = replayed_summary(output / "events.jsonl")
    assert replayed is not None
    one, other = (each.model_dump(mode="json", exclude=set(NOT_IN_EVENTS)) for each in (written, replayed))
    _assert_equal(one, other, "summary")
    return written


def _assert_equal(one: Any, other: Any, where: str) -> None:
    if isinstance(one, dict) and isinstance(other, dict):
        assert list(one) == list(other), where
        for key, value in one.items():
            _assert_equal(value, other[key], f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other), where
        for index, pair in enumerate(zip(one, other, strict=True)):
            _assert_equal(*pair, f"{where}.{index}")
    elif isinstance(one, float) or isinstance(other, float):  # sums of seconds depend on their order, in the last digit
        assert one == pytest.approx(other, rel=1e-9, abs=1e-9), where
    else:
        assert one == other, where
