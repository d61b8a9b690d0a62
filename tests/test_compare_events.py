"""The script that compares event streams: what it tells apart, and what it lets pass as timing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compare_events import describe, main

START = {"event": "PassStarted", "model": "m", "texts": 9, "stored_texts": 0}
END = {"event": "PassFinished", "model": "m", "rows": 9, "dim": 4, "stored_chunks": 9, "truncated": 0, "weight": 1.0}


def batch(rows: int) -> dict[str, Any]:
    return {"event": "BatchEncoded", "model": "m", "rows": rows, "tokens": rows * 5, "bad_rows": 0}


def mitigated(kind: str) -> dict[str, Any]:
    return {"event": "Mitigated", "kind": kind, "details": {"model": "m"}}


def compare(before: list[dict[str, Any]], after: list[dict[str, Any]], folder: Path) -> int:
    for name, events in (("before", before), ("after", after)):
        log = describe([{"collection": "c", **event} for event in events], concurrent=False)
        (folder / name).write_text(json.dumps({"a run": {"step 1": {"exit code": 0, "events.jsonl": log}}}))
    return main(["compare", str(folder / "before"), str(folder / "after")])


def test_other_batches_of_the_same_rows_are_timing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grown = [START, batch(3), mitigated("adaptive_batch_grow"), batch(6), END]
    assert compare([START, batch(9), END], grown, tmp_path) == 0
    assert "no difference" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ([START, batch(8), END], "c / m: rows of batches: 9 before, 8 after"),
        ([START, batch(9)], "PassFinished: 1 before, none after"),
        ([batch(9), START, END], "order: all: at the beginning came nothing; now BatchEncoded m"),
        ([START, batch(9), mitigated("oom_bisect"), END], "Mitigated oom_bisect: none before, 1 after"),
    ],
)
def test_a_difference_is_told_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], after: list[dict[str, Any]], words: str
) -> None:
    assert compare([START, batch(9), END], after, tmp_path) == 1
    assert words in capsys.readouterr().out
