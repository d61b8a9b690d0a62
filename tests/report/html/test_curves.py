"""Events of any number become a page of bounded size, and sums stay exact."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.report.html.conftest import Page, batch, snapshot, write_lines
from ultimate_embedder.output import Output
from ultimate_embedder.report.html.curves import read_curves
from ultimate_embedder.report.html.page import make_page
from ultimate_embedder.report.html.svg import ticks
from ultimate_embedder.summary import CollectionSummary, MitigationSummary, PassSummary, RunSummary

START = 1_000_000.0
BATCHES = 6_000
DEVICES = ("simulated:0", "simulated:1")


def summary_of(models: tuple[str, ...]) -> RunSummary:
    passes = [
        PassSummary(
            model=model,
            model_pass=index,
            fingerprint="f",
            weight=1,
            devices=list(DEVICES),
            dtype="float16",
            texts=1,
            stored_texts=0,
        )
        for index, model in enumerate(models)
    ]
    taken = [
        MitigationSummary(
            type="oom_bisect" if number % 2 else "adaptive_batch_reduce",
            timestamp=START + number,
            details={"device": DEVICES[number % 2], "model": models[0], "reason": "no room"},
        )
        for number in range(2000)
    ]
    return RunSummary(
        seconds=8000, collections=[CollectionSummary(collection="docs", passes=passes, mitigations=taken)]
    )


def test_a_long_run_gives_a_small_page_with_exact_sums(tmp_path: Path) -> None:
    events = [
        batch(index, START + index, device=DEVICES[index % 2], forward_seconds=0.2 + index / BATCHES)
        for index in range(BATCHES)
    ]
    write_lines(tmp_path / "events.jsonl", events)
    rolled = read_curves(Output(tmp_path).events_path)
    assert rolled is not None
    pace = rolled.paces["tiny"]
    assert (pace.batches, pace.tokens, pace.rows) == (
        BATCHES,
        sum(each["tokens"] for each in events),
        sum(each["rows"] for each in events),
    )
    assert sum(pace.tokens_in) == pytest.approx(pace.tokens)
    assert sum(count for *_, count in pace.rows_in.values()) == BATCHES
    assert max(max(lane.peak_bytes.values()) for lane in rolled.lanes.values()) == 60_000_999 + 1_000_000
    page = make_page(summary_of(("tiny",)), rolled)
    assert len(page) < 200_000
    assert "Mitigations: 2,000" in Page(page).words


def test_many_short_leases_are_drawn_as_one_bar(tmp_path: Path) -> None:
    events = []
    for turn in range(3000):
        at, model = START + turn, ("a", "b")[turn % 2]
        lease = {
            "collection": "docs",
            "model": model,
            "devices": ["simulated:0"],
            "memory": [snapshot("simulated:0", turn)],
            "lease_id": str(turn),
        }
        acquired = {"waited_seconds": 0.0, "evicted": [], "saved_bytes": 0, "saved_seconds": 0.0}
        released = {"placement": "one copy", "kept_bytes": 0, "leftovers": [], "moving_seconds": 0.0}
        events.append({"event": "LeaseAcquired", "timestamp": at, **lease, **acquired})
        events.append({"event": "LeaseReleased", "timestamp": at + 0.9, **lease, **released})
    write_lines(tmp_path / "events.jsonl", events)
    rolled = read_curves(tmp_path / "events.jsonl")
    assert rolled is not None
    [lane] = rolled.lanes.values()
    assert {model: [span.merged for span in spans] for model, spans in lane.leases.items()} == {
        "a": [1500],
        "b": [1500],
    }
    assert len(lane.held_bytes) == 400


def test_what_has_not_ended_lasts_to_the_last_event(tmp_path: Path) -> None:
    started = {"collection": "docs", "model": "tiny", "model_pass": 0, "weight": 1.0, "devices": ["cpu"]}
    started |= {"dtype": "float32", "fingerprint": "f", "texts": 9, "stored_texts": 0}
    write_lines(
        tmp_path / "events.jsonl",
        [
            {"event": "PassStarted", "timestamp": START, **started},
            batch(0, START + 3, device="cpu"),
            {"event": "Warned", "timestamp": START + 10, "collection": None, "message": "slow"},
        ],
    )
    rolled = read_curves(tmp_path / "events.jsonl")
    assert rolled is not None
    [span] = rolled.lanes["cpu"].passes["tiny"]
    assert (span.begin, span.end, span.ended, rolled.ended) == (0, 10, False, False)


def test_events_after_the_end_of_the_run_are_left_out(tmp_path: Path) -> None:
    end = {"event": "RunFinished", "timestamp": START + 5, "collection": None}
    write_lines(tmp_path / "events.jsonl", [batch(0, START), end, batch(1, START + 900)])
    rolled = read_curves(tmp_path / "events.jsonl")
    assert rolled is not None
    assert (rolled.paces["tiny"].batches, rolled.ended) == (1, True)


def test_a_pipe_in_the_place_of_the_log_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    assert read_curves(tmp_path / "events.jsonl") is None


def test_a_line_without_end_is_not_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ultimate_embedder.report.replay.LARGEST_LINE", 4096)
    good = json.dumps(batch(0, START))
    (tmp_path / "events.jsonl").write_text(f'{good}\n{{"event": "{"x" * 100_000}"}}\n{good}\n', "utf-8")
    rolled = read_curves(tmp_path / "events.jsonl")
    assert rolled is not None
    assert rolled.paces["tiny"].batches == 2
    assert rolled.damaged_lines > 0


@pytest.mark.parametrize(("top", "last"), [(0.07, 0.06), (1, 1), (23.8, 20), (1e7, 1e7), (0, 0), (float("inf"), 0)])
def test_ticks_are_round_numbers(top: float, last: float) -> None:
    assert ticks(top)[-1] == pytest.approx(last)
    assert len(ticks(top)) <= 8
