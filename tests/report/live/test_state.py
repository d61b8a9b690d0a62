"""The fold of events into rows: without files, without time."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from typing import Any

import pytest

from ultimate_embedder import events
from ultimate_embedder.report.live import RunState, RunView
from ultimate_embedder.report.roll_up import RolledUp, joined, rolled_up
from ultimate_embedder.types import ExportedFile, MemorySnapshot

GB = 1_000_000_000
START = 1_700_000_000.0


def memory(device: str = "cuda:0", reserved: int = 2 * GB, ceiling: int = 12 * GB) -> MemorySnapshot:
    """A card of 16 GB, of which others use one."""
    return MemorySnapshot(device, 16 * GB, 13 * GB, reserved, reserved, reserved, reserved + GB, GB, ceiling)


def started(at: float = 0.0, **changes: Any) -> events.PassStarted:
    """A pass over 1,000 texts of which none has a vector."""
    fields: dict[str, Any] = {
        "collection": "docs",
        "model": "minilm",
        "model_pass": 0,
        "weight": 1.0,
        "devices": ["cuda:0"],
        "dtype": "float16",
        "fingerprint": "aa",
        "texts": 1000,
        "stored_texts": 0,
    }
    return events.PassStarted(timestamp=START + at, **{**fields, **changes})


def batch(at: float, texts: int = 100, **changes: Any) -> events.BatchEncoded:
    """A batch that took a second."""
    fields: dict[str, Any] = {
        "collection": "docs",
        "model": "minilm",
        "model_pass": 0,
        "batch_index": 0,
        "device": "cuda:0",
        "dtype": "float16",
        "rows": texts,
        "texts": texts,
        "planned_rows": texts,
        "tokens": 50 * texts,
        "padded_tokens": 60 * texts,
        "longest": 60,
        "bad_rows": 0,
        "packed": False,
        "fp32_rows": 0,
        "predicted_bytes": 0,
        "measured_bytes": 0,
        "wait_seconds": 0.0,
        "forward_seconds": 1.0,
        "memory_before": memory(),
        "memory": memory(),
    }
    return events.BatchEncoded(timestamp=START + at, **{**fields, **changes})


def lease(at: float = 0.0, model: str = "minilm", devices: tuple[str, ...] = ("cuda:0",)) -> events.LeaseAcquired:
    """A model gets its devices."""
    return events.LeaseAcquired(
        timestamp=START + at,
        collection="docs",
        model=model,
        devices=list(devices),
        memory=[memory(device) for device in devices],
        waited_seconds=0.0,
        evicted=[],
        saved_bytes=0,
        saved_seconds=0.0,
    )


def release(at: float) -> events.LeaseReleased:
    """It gives them back."""
    return events.LeaseReleased(
        timestamp=START + at,
        collection="docs",
        model="minilm",
        devices=["cuda:0"],
        memory=[memory(reserved=0)],
        placement="replicas",
        kept_bytes=0,
        leftovers=[],
        moving_seconds=0.0,
    )


def tokenized(at: float, texts: int, tokens: int) -> events.WindowTokenized:
    """A window was tokenised."""
    return events.WindowTokenized(
        timestamp=START + at,
        collection="docs",
        model="minilm",
        model_pass=0,
        texts=texts,
        tokens=tokens,
        seconds=0.1,
    )


def mitigated(at: float, kind: str, **details: Any) -> events.Mitigated:
    """The course was changed."""
    return events.Mitigated(timestamp=START + at, collection="docs", kind=kind, details=details)


def finished(at: float, status: Any = "completed", error: str | None = None) -> list[events.Event]:
    """The collection and the run end."""
    return [
        events.CollectionFinished(timestamp=START + at, collection="docs", status=status, error=error),
        events.RunFinished(timestamp=START + at, seconds=at),
    ]


def fold(*given: events.Event) -> RunState:
    """The state after these events."""
    state = RunState()
    for event in given:
        state(event)
    return state


def view(*given: events.Event, now: float | None = None) -> RunView:
    """What it shows, so many seconds after the start."""
    return fold(*given).view(None if now is None else START + now)


def shares(state: RunState, *given: events.Event) -> list[float]:
    """How far the first pass is after each event."""
    found = []
    for event in given:
        state(event)
        found.append(state.view().passes[0].share)
    return found


# rows


def test_a_device_has_its_memory_against_the_ceiling_and_its_tokens_per_second() -> None:
    (device,) = view(lease(), started(), *(batch(at) for at in (1.0, 2.0, 3.0, 4.0))).devices
    assert (device.name, device.models, device.lost) == ("cuda:0", ("minilm",), None)
    assert (device.held_bytes, device.ceiling_bytes, device.peak_bytes) == (3 * GB, 12 * GB, 4 * GB)
    assert device.tokens_per_second == pytest.approx(5000)
    assert device.idle_share == 0.0


def test_rates_follow_what_happens_now_and_fall_when_nothing_does() -> None:
    given = [lease(), started(), *(batch(float(at), 10) for at in range(1, 60)), batch(60.0, 400)]
    assert view(*given).devices[0].tokens_per_second == pytest.approx(50 * (29 * 10 + 400) / 30, rel=0.03)
    assert view(*given, now=90.5).devices[0].tokens_per_second == 0.0


def test_while_a_batch_is_under_way_rates_stay_and_the_time_left_goes_down() -> None:
    given = [
        lease(),
        started(),
        tokenized(0.0, 1000, 50_000),
        *(batch(10.0 * at, forward_seconds=10.0) for at in (1, 2, 3)),
    ]
    before, after, late = (view(*given, now=now) for now in (30.0, 38.0, 100.0))
    assert before.passes[0].eta_seconds == pytest.approx(70.0)
    assert after.passes[0].eta_seconds == pytest.approx(62.0)
    assert after.devices[0].tokens_per_second == before.devices[0].tokens_per_second == pytest.approx(500)
    assert late.passes[0].eta_seconds is not None
    assert late.passes[0].eta_seconds > 100


def test_a_device_that_waits_half_of_the_time_is_half_idle() -> None:
    given = [batch(2.0 * at, wait_seconds=1.0) for at in range(1, 20)]
    (device,) = view(lease(), started(), *given).devices
    assert device.idle_share == pytest.approx(0.5, abs=0.05)


def test_time_without_a_lease_is_idle_and_a_batch_under_way_is_not() -> None:
    given = [lease(), started(), *(batch(float(at)) for at in range(1, 11))]
    assert view(*given[:-1], now=25.0).devices[0].idle_share == 0.0
    for over in (given, [*given[:-1], release(10.0)]):  # it has nothing left to do, or no device
        assert view(*over, now=30.0).devices[0].idle_share == pytest.approx(2 / 3, abs=0.05)


def test_two_workers_on_one_device_are_not_twice_as_busy() -> None:
    given = [batch(at, device="cpu", wait_seconds=0.2) for at in (1.0, 1.5, 2.2, 2.7, 3.4, 3.9)]
    (device,) = [each for each in view(started(), *given).devices if each.name == "cpu"]
    assert device.idle_share == pytest.approx(0.2 / 1.2, abs=0.1)


def test_a_pass_has_its_texts_batch_and_time_left() -> None:
    window = tokenized(0.0, 500, 25_000)
    (row,) = view(lease(), started(), window, *(batch(float(at)) for at in (1, 2, 3, 4))).passes
    assert (row.collection, row.model, row.state, row.devices, row.dtype) == (
        "docs",
        "minilm",
        "running",
        ("cuda:0",),
        "float16",
    )
    assert (row.done, row.texts, row.share, row.tokens) == (400, 1000, 0.4, 20_000)
    assert (row.batch_rows, row.planned_rows, row.batch_tokens) == (100, 100, 6000)
    assert row.eta_seconds == pytest.approx(6.0)


def test_the_time_left_counts_tokens_as_windows_begin_with_their_longest_texts() -> None:
    long, short = batch(1.0, 100, tokens=40_000), tokenized(0.0, 1000, 130_000)
    (row,) = view(lease(), started(), short, long).passes
    assert row.share == pytest.approx(0.1)
    assert row.eta_seconds == pytest.approx(90_000 / 40_000)


def test_models_that_have_not_begun_wait() -> None:
    chosen = events.ModeChosen(
        timestamp=START,
        collection="docs",
        mode="exclusive",
        why="",
        fusion="named",
        weights={"minilm": 0.5, "bge": 0.5},
    )
    first, second = view(chosen, started(), batch(1.0)).passes
    assert (first.state, second.state, second.model, second.share) == ("running", "waiting", "bge", 0.0)


def test_texts_without_a_usable_vector_count_as_done_with() -> None:
    (row,) = view(started(), batch(1.0, 900), batch(2.0, 60, bad_rows=40)).passes
    assert (row.done, row.share) == (960, 1.0)


def test_batches_that_were_added_up_give_the_same_rows() -> None:
    batches = [batch(float(at), wait_seconds=0.2, began=START + at - 0.8, forward_seconds=0.8) for at in range(1, 9)]
    parts: list[RolledUp] = [rolled_up(each) for each in batches]
    together = functools.reduce(joined, parts)
    single, rolled = (view(lease(), started(), tokenized(0.0, 1000, 50_000), *given) for given in (batches, [together]))
    assert (single.passes[0].done, single.passes[0].share, single.passes[0].tokens) == (800, 0.8, 40_000)
    assert (rolled.passes[0].done, rolled.passes[0].share, rolled.passes[0].tokens) == (800, 0.8, 40_000)
    assert (rolled.passes[0].batch_rows, rolled.passes[0].batch_tokens) == (100, 6000)
    assert rolled.passes[0].eta_seconds == pytest.approx(single.passes[0].eta_seconds, rel=0.1)
    for before, after in zip(single.devices, rolled.devices, strict=True):
        assert (after.held_bytes, after.peak_bytes) == (before.held_bytes, before.peak_bytes)
        assert after.tokens_per_second == pytest.approx(before.tokens_per_second, rel=0.1)
        assert after.idle_share == pytest.approx(before.idle_share, abs=0.05)


def test_mitigations_that_were_added_up_are_counted() -> None:
    several = dataclasses.replace(mitigated(1.0, "oom_bisect", model="minilm"), times=40, until=START + 9)
    (notice,) = view(mitigated(0.5, "oom_bisect", model="minilm"), several).mitigations
    assert (notice.times, notice.at, notice.last_at) == (41, START + 0.5, START + 9)


def test_a_device_is_listed_from_the_time_it_is_opened() -> None:
    opened = events.DeviceOpened(
        timestamp=START, device="cuda:0", total_bytes=16 * GB, ceiling_bytes=12 * GB, ceiling_reason="the default"
    )
    (device,) = view(opened).devices
    assert (device.held_bytes, device.ceiling_bytes, device.ceiling_reason) == (None, 12 * GB, "the default")


# shares never go back


def test_a_resumed_pass_begins_where_the_last_run_was() -> None:
    assert shares(RunState(), started(stored_texts=600), batch(1.0), batch(2.0, 300)) == pytest.approx([0.6, 0.7, 1.0])


def test_a_pass_that_begins_again_in_fp32_does_not_go_back_and_reaches_its_end() -> None:
    state = RunState()
    before = shares(state, started(), batch(1.0, 400))
    after = shares(state, started(2.0, dtype="float32", fingerprint="bb"), batch(3.0, 500), batch(4.0, 500))
    assert before == [0.0, 0.4]
    assert after == pytest.approx([0.4, 0.7, 1.0])
    (row,) = state.view().passes
    assert (row.restarts, row.dtype, row.done) == (1, "float32", 1000)


def test_a_pass_that_goes_on_after_a_loss_does_not_go_back() -> None:
    state = RunState()
    lost = mitigated(2.0, "device_lost", device="cuda:0", error="it fell off", rows=64)
    again = started(3.0, stored_texts=450, devices=["cuda:1"])
    found = shares(state, started(), batch(1.0, 500), lost, again, batch(4.0, 100), batch(5.0, 450))
    assert found == sorted(found)
    assert found[-1] == 1.0
    (device,) = state.view().devices
    assert device.lost == "it fell off"


def test_a_fresh_process_does_not_set_a_pass_back() -> None:
    state = RunState()
    begun = events.CollectionStarted(timestamp=START + 3, collection="docs", files=1)
    fresh = mitigated(2.0, "fresh_process", devices=["cuda:0"])
    found = shares(state, started(), lease(), batch(1.0, 500), fresh, begun, started(4.0, stored_texts=480))
    assert found == sorted(found)
    assert state.view().leases == ()
    state(lease(5.0))
    assert state.view().devices[0].lost is None


def test_a_run_that_resumes_a_killed_one_does_not_go_back_but_a_fresh_one_does() -> None:
    again = events.RunStarted(timestamp=START + 9, options=None, chunks="in", output="out")  # type: ignore[arg-type]
    for stored, expected in ((450, 0.5), (0, 0.0)):
        state = fold(started(), batch(1.0, 500))
        state(again)
        assert state.view().passes == ()
        assert shares(state, started(10.0, stored_texts=stored)) == [expected]


def test_what_is_complete_is_at_its_end_whatever_was_counted() -> None:
    fused = events.VectorsFused(timestamp=START + 3, collection="docs", points=998, vectors=())
    assert view(started(), batch(1.0, 998), fused).passes[0].share == 1.0


# what is under way


def test_what_is_under_way_has_its_progress() -> None:
    state = fold(
        events.ModelFetchStarted(timestamp=START, model="bge", files=2, size_bytes=1000),
        events.ModelBytesFetched(timestamp=START + 1, model="bge", size_bytes=250),
        events.ModelBytesFetched(timestamp=START + 2, model="bge", size_bytes=250),
    )
    (work,) = state.view().activities
    assert (work.kind, work.words, work.unit) == ("downloading", "downloading bge", "bytes")
    assert (work.done, work.total, work.share, work.per_second, work.eta_seconds) == (500, 1000, 0.5, 250.0, 2.0)


def test_bytes_that_are_fetched_again_do_not_go_beyond_the_end() -> None:
    fetched = [events.ModelBytesFetched(timestamp=START + at, model="bge", size_bytes=700) for at in (1, 2)]
    begun = events.ModelFetchStarted(timestamp=START, model="bge", files=2, size_bytes=1000)
    (work,) = view(begun, *fetched).activities
    assert (work.share, work.eta_seconds) == (1.0, 0.0)


def test_an_upload_goes_on_from_where_the_last_one_was() -> None:
    begun = events.UploadStarted(
        timestamp=START, collection="docs", target="there", points=100, uploaded=40, created=False
    )
    sent = events.BatchUploaded(timestamp=START + 2, collection="docs", target="there", points=20)
    (work,) = view(begun, sent).activities
    assert (work.words, work.done, work.share, work.per_second) == ("docs → there", 60, 0.6, 10.0)


def test_every_stage_begins_and_ends() -> None:
    state = RunState()
    exported = ExportedFile("npy", "x", 1, "", 1)  # type: ignore[arg-type]
    loaded: dict[str, Any] = {
        "dtype": "float32",
        "dim": 4,
        "max_tokens": 5,
        "document_prompt": "",
        "tokenizer": "",
        "seconds": 0.0,
    }
    counts: dict[str, Any] = {"found": 3, "loaded": 2, "rejected": 1, "distinct_texts": 2, "seconds": 0.0}
    steps: list[tuple[events.Event, list[str]]] = [
        (events.RunStarted(options=None, chunks="in", output="out"), ["starting"]),  # type: ignore[arg-type]
        (events.CollectionStarted(collection="docs", files=1), ["reading"]),
        (events.ChunksLoaded(collection="docs", **counts), []),
        (events.ModelLoadStarted(model="m"), ["loading"]),
        (events.ModelLoaded(model="m", **loaded), []),
        (events.ExportStarted(collection="docs", kind="npy"), ["exporting"]),
        (events.ExportWritten(collection="docs", exported=exported, seconds=0.0), []),
        (events.ExportStarted(collection="docs", kind="qdrant"), ["exporting"]),
        (events.CollectionFinished(collection="docs", status="failed", error="the disk is full"), []),
    ]
    for event, expected in steps:
        state(event)
        assert [work.kind for work in state.view().activities] == expected
    (collection,) = state.view().collections
    assert (collection.status, collection.chunks, collection.rejected) == ("failed", 2, 1)
    assert collection.error == "the disk is full"


# mitigations, warnings, leases, status


def test_mitigations_are_sentences_with_their_reasons_and_are_counted() -> None:
    reduced = {"model": "minilm", "device": "cuda:0", "reason": "close to the ceiling", "rows": 16, "planned_rows": 64}
    given = [mitigated(at, "adaptive_batch_reduce", **reduced, longest=512) for at in (1.0, 2.0)]
    (notice,) = view(*given).mitigations
    assert notice.words == (
        "minilm on cuda:0: batches are smaller than planned: the device has no room for more "
        "(close to the ceiling; 16 of 64 rows per batch)"
    )
    assert (notice.times, notice.at, notice.last_at) == (2, START + 1, START + 2)


def test_leases_are_listed_until_they_are_released() -> None:
    assert [each.model for each in view(lease()).leases] == ["minilm"]
    assert view(lease(), release(1.0)).leases == ()


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ([], "running"),
        (finished(5.0), "finished"),
        (finished(5.0, "skipped_existing"), "finished"),
        (finished(5.0, "partial", "stopped: the deadline is near"), "stopped"),
        (finished(5.0, "failed", "no room"), "failed"),
        ([events.RunFinished(timestamp=START, error="bge is missing")], "failed"),
        ([events.RunFinished(timestamp=START, error="interrupted")], "stopped"),
    ],
)
def test_the_status_is_that_of_the_run(ending: list[events.Event], expected: str) -> None:
    assert view(started(), *ending).status == expected
    assert RunState().status == "waiting"


def test_a_run_that_has_ended_stands_still() -> None:
    state = fold(lease(), started(), batch(1.0, 1000), *finished(5.0))
    assert state.view(START + 1000) == state.view()
    assert state.view().seconds == 5.0


# hostile values


def test_the_state_is_plain_json() -> None:
    state = fold(lease(), started(), batch(1.0), mitigated(1.0, "oom_bisect", model="minilm"), *finished(2.0))
    assert json.loads(json.dumps(state.as_dict(START + 3), allow_nan=False))["passes"][0]["done"] == 100


def test_text_from_outside_is_printable_and_short() -> None:
    odd = "\x1b[2Jdocs\n" + "x" * 5000
    given = [dataclasses.replace(event, collection=odd) for event in (started(model=odd), batch(1.0, model=odd))]
    found = view(*given, events.Warned(timestamp=START, message=odd), mitigated(1.0, odd, model=odd, reason=odd))
    for text in (found.passes[0].collection, found.warnings[0].words, found.mitigations[0].words):
        assert text.isprintable()
        assert "\\x1b[2J" in text
        assert len(text) < 2000


@pytest.mark.parametrize("odd", [math.nan, math.inf, -1.0, 1e300])
def test_absurd_numbers_do_no_harm(odd: float) -> None:
    count = -5 if odd < 0 else 10**400
    given = [
        lease(),
        started(texts=count, stored_texts=count),
        batch(1.0, texts=count, tokens=count, rows=count, wait_seconds=odd, forward_seconds=odd),
        dataclasses.replace(batch(2.0), timestamp=odd),
        dataclasses.replace(batch(3.0), memory=memory(reserved=count, ceiling=-count)),
        batch(4.0, model_pass=count),
    ]
    json.dumps(view(*given, now=10.0).as_dict(), allow_nan=False)
    json.dumps(view(*given, now=-10.0).as_dict(), allow_nan=False)


def test_a_million_devices_and_passes_are_a_bounded_list() -> None:
    state = RunState()
    for number in range(3000):
        name = f"cuda:{number}"
        state(batch(1.0, device=name, memory=memory(name), model_pass=number))
        state(mitigated(1.0, "oom_bisect", model=name))
        state(events.Warned(timestamp=START, message=name))
        state(dataclasses.replace(lease(model=name, devices=(name,)), collection=name))
        state(events.CollectionStarted(timestamp=START, collection=name, files=1))
        state(events.ExportStarted(timestamp=START, collection=name, kind="npy"))
    assert len(json.dumps(state.as_dict())) < 1_000_000
    assert state.view().left_out["devices"] > 0
