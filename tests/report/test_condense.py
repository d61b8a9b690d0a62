"""What is added up in `events.jsonl` adds up to the same: a log of bounded size tells all that the run has told."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.replayed import assert_replays
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed, events
from ultimate_embedder.report import condense, quota
from ultimate_embedder.report.compaction import compact
from ultimate_embedder.report.condense import Condenser
from ultimate_embedder.report.event_log import EventLog
from ultimate_embedder.report.html.curves import read_curves
from ultimate_embedder.report.replay import EventReader, read_event_objects
from ultimate_embedder.report.roll_up import joined, rolled_up
from ultimate_embedder.summary import RunOptions
from ultimate_embedder.types import LengthCounts, MemorySnapshot, Rejected

TEXTS = 1500
LONG = "This text has a lot more letters than the model is allowed to see. " * 3


def write_chunks(folder: Path) -> Path:
    (folder / "docs").mkdir(parents=True)
    records: list[Any] = [{"id": f"{n}", "text": f"text number {n} " * (n * 7 % 11 + 1)} for n in range(TEXTS)]
    records += [{"id": "0", "text": f"{LONG} {n}"} for n in range(30)]  # duplicate ids of texts that are truncated
    records += [{"id": f"e{n}", "text": " "} for n in range(25)] + list(range(20))
    (folder / "docs" / "a_chunks.json").write_text(json.dumps(records), "utf-8")
    return folder


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run whose log has next to nothing event by event."""
    root = tmp_path_factory.mktemp("condensed")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FIRST_BATCHES", "SPECIAL_BATCHES", "FEW_BATCHES"):
            patch.setattr(condense, name, 2)
        patch.setattr(quota, "MOST_RECORDS", 4)
        embed(
            write_chunks(root / "chunks"),
            root / "out",
            models=[str(tiny_model("bert"))],
            max_tokens=64,
            batch_tokens=256,
            exports="npy",
            no_report=True,
            quiet=True,
        )
    return root / "out"


def kinds(output: Path) -> Counter[str]:
    return Counter(type(event).__name__ for event in read_event_objects(output / "events.jsonl"))


def test_a_log_that_is_added_up_gives_the_summary_of_the_run(output: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quota, "MOST_RECORDS", 4)
        summary = assert_replays(output)
    counted, found = kinds(output), summary.collections[0].passes[0]
    assert 0 < counted["BatchEncoded"] < found.batches / 2
    assert counted["BatchesEncoded"] > 0
    assert (counted["ChunkRejected"], counted["IdDuplicated"]) == (4, 4)
    assert (summary.collections[0].chunks.rejected, summary.collections[0].chunks.duplicate_ids) == (45, 30)
    assert len(summary.slowest_batches) == 8


def test_lengths_of_all_texts_are_in_the_summary_with_what_they_lost(output: Path) -> None:
    found = assert_replays(output).collections[0].passes[0]
    assert sum(each.texts for each in found.lengths) == found.encoded_texts == TEXTS + 30
    assert sum(each.tokens_lost for each in found.lengths) == found.tokens_lost > 0
    assert sum(each.overlong for each in found.lengths) == found.truncated_texts >= 30
    assert [each.most_tokens for each in found.lengths] == sorted(each.most_tokens for each in found.lengths)


def test_a_log_can_be_made_shorter_and_says_the_same(output: Path, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_bytes((output / "events.jsonl").read_bytes())
    before, curves = list(read_event_objects(log)), read_curves(log)
    compact(log, most=8)
    after = list(read_event_objects(log))
    assert len(after) < len(before)
    (tmp_path / "summary.json").write_bytes((output / "summary.json").read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quota, "MOST_RECORDS", 4)
        assert_replays(tmp_path)
    shorter = read_curves(log)
    assert curves is not None
    assert shorter is not None
    assert {name: pace.tokens for name, pace in shorter.paces.items()} == {
        name: pace.tokens for name, pace in curves.paces.items()
    }


def memory(used: int) -> MemorySnapshot:
    return MemorySnapshot("cuda:0", 100, 100 - used, used, used, used, used, 0, 90)


def batch(index: int, at: float, **more: Any) -> events.BatchEncoded:
    fields: dict[str, Any] = {
        "rows": 8,
        "texts": 8,
        "planned_rows": 8,
        "tokens": 80,
        "padded_tokens": 96,
        "longest": 12,
        "bad_rows": 0,
        "packed": False,
        "fp32_rows": 0,
        "predicted_bytes": 0,
        "measured_bytes": 0,
        "wait_seconds": 0.25,
        "forward_seconds": 0.5,
        "memory_before": memory(10),
        "memory": memory(20 + index % 7),
        "began": at - 0.5,
        "prediction_error": 0.01,
        "lengths": {16: LengthCounts(8, 0, 80, 0)},
        **more,
    }
    return events.BatchEncoded(
        collection="docs",
        timestamp=at,
        model="m",
        model_pass=0,
        batch_index=index,
        device="cuda:0",
        dtype="float16",
        **fields,
    )


def test_sums_and_extremes_of_batches_are_those_of_all() -> None:
    first, second = rolled_up(batch(0, 10.0, rows=4, memory=memory(70))), rolled_up(batch(1, 12.0, fp32_rows=3))
    both = joined(first, second)
    assert isinstance(both, events.BatchesEncoded)
    assert (both.batches, both.rows, both.fewest_rows, both.most_rows, both.reduced) == (2, 12, 4, 8, 1)
    assert (both.began, both.timestamp, both.forward_seconds, both.fp32_rows) == (9.5, 12.0, 1.0, 3)
    assert (both.memory.reserved_bytes, both.memory.peak_bytes, both.held_bytes) == (21, 70, 70)
    assert both.prediction_errors == {10: 2}
    assert both.lengths == {16: LengthCounts(16, 0, 160, 0)}


def test_the_slowest_and_the_first_reduced_batches_are_never_added_up() -> None:
    condenser = Condenser()
    for index in range(condense.FIRST_BATCHES):
        condenser.take(batch(index, index))
    assert condenser.take(batch(1000, 1000.0)) == []
    slow, reduced = batch(1001, 1001.0, forward_seconds=9.0), batch(1002, 1002.0, rows=2)
    assert condenser.take(slow)[-1] is slow
    assert condenser.take(reduced) == [reduced]


def test_a_run_of_any_length_has_a_log_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "MOST_RECORDS", 100)
    monkeypatch.setattr(quota, "MOST_MITIGATIONS", 100)
    condenser, lines = Condenser(), 0
    for index in range(4_000):
        lines += len(condenser.take(batch(index, index / 100, forward_seconds=0.001 * (index % 977))))
        details = {"device": "cuda:0", "reason": "no room"}
        event = events.Mitigated(collection="docs", kind="oom_bisect", details=details)
        rejected = events.ChunkRejected(collection="docs", rejected=Rejected("a", index, f"no text in line {index}"))
        lines += len(condenser.take(event)) + len(condenser.take(rejected))
    assert lines < condense.FIRST_BATCHES + condense.MANY_SLOWEST + 2 * 100
    pending = condenser.flush()
    assert len(pending) == 3
    assert sum(each.times for each in pending if isinstance(each, events.Mitigated)) == 3_900
    assert sum(each.records for each in pending if isinstance(each, events.ChunksRejected)) == 3_900
    assert condenser.flush() == []


def test_many_small_collections_have_a_few_batches_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condense, "BATCHES_IN_ALL", 200)
    condenser = Condenser()
    written = 0
    for collection in range(100):
        for index in range(20):
            written += len(condenser.take(replace(batch(index, index), collection=str(collection))))
    assert 100 * condense.FEW_BATCHES <= written <= 200 + 100 * condense.FEW_BATCHES


def test_what_is_pending_is_written_without_another_event(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log(events.RunStarted(options=RunOptions(), chunks="c", output="o"))
    for index in range(condense.FIRST_BATCHES + 5):
        log(batch(index, float(index)))
    log._flush()  # what the thread of the log calls every second
    assert sum(isinstance(event, events.BatchesEncoded) for event in read_event_objects(tmp_path / "events.jsonl")) == 1
    log.close()


def test_a_long_log_is_compacted_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, most_added_up=40)
    log(events.RunStarted(options=RunOptions(), chunks="c", output="o"))
    for index in range(1_000):
        log(batch(index, float(index), forward_seconds=0.1))
        log._flush()
    log(events.RunFinished(seconds=1000.0))
    log.close()
    found = list(read_event_objects(path))
    rolled = [event for event in found if isinstance(event, events.BatchesEncoded)]
    assert 10 < len(rolled) <= 80
    singles = [event for event in found if isinstance(event, events.BatchEncoded)]
    assert sum(event.batches for event in rolled) + len(singles) == 1_000
    assert isinstance(found[-1], events.RunFinished)
    assert [event.timestamp for event in rolled] == sorted(event.timestamp for event in rolled)
    assert list(tmp_path.iterdir()) == [path]


def test_a_log_of_a_later_version_is_recognised(tmp_path: Path) -> None:
    start = events.RunStarted(options=RunOptions(), chunks="c", output="o", events_version=events.EVENTS_VERSION + 1)
    path = tmp_path / "events.jsonl"
    path.write_bytes(start.as_line() + b'{"event": "NotInvented", "timestamp": 3.0}\n' + b"{broken\n")
    reader = EventReader(path)
    assert [type(event).__name__ for event in reader] == ["RunStarted"]
    assert (reader.is_newer, reader.damaged_lines) == (True, 1)


def test_a_log_of_the_first_version_is_read(tmp_path: Path) -> None:
    old = batch(0, 10.0).as_dict()
    for name in ("began", "lease_id", "prediction_error", "lengths"):
        del old[name]
    start = {"event": "RunStarted", "timestamp": 1.0, "options": {}, "chunks": "c", "output": "o"}
    (tmp_path / "events.jsonl").write_text(json.dumps(start) + "\n" + json.dumps(old) + "\n")
    reader = EventReader(tmp_path / "events.jsonl")
    [_, found] = reader
    assert isinstance(found, events.BatchEncoded)
    assert (found.began, rolled_up(found).began, reader.version) == (None, 9.5, 1)
