"""A card that hangs: it is reported, and `--stall-timeout` ends the run so that it can be resumed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.clock import Clock, wait_until
from tests.support.faults import TEXTS, run_with, stored_rows, vectors_of, when, write_texts
from tests.support.tiny_models import tiny_model
from ultimate_embedder.devices import MemoryLimits, open_devices, works_in_time
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.errors import UsageError
from ultimate_embedder.events import BatchEncoded, BatchStalled, Event, LeaseAcquired
from ultimate_embedder.execution.placement import Placement
from ultimate_embedder.summary import RunSummary

MiB = 1 << 20
STALLS = "ultimate_embedder.execution.stalls"
OPTIONS: dict[str, Any] = {"batch_tokens": 512, "devices": "simulated:2x64MiB"}


@pytest.fixture
def controls() -> Iterator[SimulatedControls]:
    controls = simulate([64 * MiB] * 2)
    yield controls
    controls.resize([64 * MiB] * 2)  # lets everything go on that hangs
    wait_until(no_workers)
    gc.collect()
    assert [controls.usage(device)["allocated"] for device in range(2)] == [0, 0]


def no_workers() -> bool:
    return not [each for each in threading.enumerate() if each.name.startswith("worker_") or each.name == "in-time"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The watchdog's clock; it looks often."""
    clock = Clock()
    monkeypatch.setattr(f"{STALLS}.time", clock)
    monkeypatch.setattr(f"{STALLS}.POLL_S", 0.01)
    monkeypatch.setattr(f"{STALLS}.GRACE_S", 0.0)
    return clock


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny_model("bert"))


@pytest.fixture(scope="module")
def reference(chunks: Path, model: str, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    output = tmp_path_factory.mktemp("reference")
    run_with(chunks, output, models=model, devices="cpu")
    return vectors_of(output)


class Running:
    """A run in a thread of its own, and the events that it has emitted."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.seen: list[Event] = []
        self.summary: RunSummary | None = None
        chunks, output, *watch = arguments

        def run() -> None:
            self.summary = run_with(chunks, output, self.seen.append, *watch, **options)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def encoded(self) -> list[BatchEncoded]:
        return [event for event in list(self.seen) if isinstance(event, BatchEncoded)]

    def stalls(self) -> list[BatchStalled]:
        return [event for event in list(self.seen) if isinstance(event, BatchStalled)]

    def result(self, clock: Clock | None = None) -> RunSummary:
        """The summary, when the run has ended; time passes until then."""

        def has_ended() -> bool:
            if clock is not None:
                clock.advance(60)
            return not self._thread.is_alive()

        wait_until(has_ended)
        assert self.summary is not None
        return self.summary


def test_a_batch_that_takes_far_too_long_is_reported_once_with_what_is_known(
    chunks: Path, model: str, reference: np.ndarray, tmp_path: Path, controls: SimulatedControls, clock: Clock
) -> None:
    hangs = when(BatchEncoded, lambda: controls.hang(0), 4)
    running = Running(chunks, tmp_path, hangs, models=model, **{**OPTIONS, "devices": "simulated:64MiB"})
    wait_until(lambda: len(running.encoded()) > 4)
    wait_until(lambda: clock.advance(60) or running.stalls())  # type: ignore[func-returns-value]
    (stall,) = running.stalls()
    assert (stall.device, stall.model) == ("simulated:0", "tiny-bert")
    assert stall.rows > 0
    assert stall.longest > 0
    assert stall.seconds >= max(120, 50 * stall.expected_seconds)
    assert stall.memory.device == "simulated:0"
    assert stall.memory.total_bytes == 64 * MiB
    for _ in range(20):
        clock.advance(600)
    assert running.stalls() == [stall]
    controls.release(0)
    summary = running.result()
    assert summary.collections[0].status == "completed"
    (warning,) = [each for each in summary.collections[0].warnings if "may hang" in each]
    assert f"{stall.rows} x {stall.longest} tokens" in warning
    np.testing.assert_allclose(vectors_of(tmp_path), reference, atol=1e-5)


@pytest.mark.parametrize("cards", [1, 2])
def test_a_stall_timeout_ends_the_run_and_the_next_one_goes_on(
    chunks: Path,
    model: str,
    reference: np.ndarray,
    tmp_path: Path,
    controls: SimulatedControls,
    clock: Clock,
    cards: int,
) -> None:
    hung = threading.Event()

    def hang() -> None:
        controls.hang(cards - 1)
        hung.set()

    options = {**OPTIONS, "models": model, "devices": f"simulated:{cards}x64MiB"}
    running = Running(chunks, tmp_path, when(BatchEncoded, hang, 4), stall_timeout="30m", **options)
    wait_until(hung.is_set)
    (collection,) = running.result(clock).collections
    assert collection.status == "partial"
    assert f"simulated:{cards - 1} has not finished a batch for" in (collection.error or "")
    assert "Run the same command again to resume" in (collection.error or "")
    assert (tmp_path / "summary.json").exists()
    stored = stored_rows(tmp_path)
    assert 0 < stored < TEXTS
    assert collection.passes[0].encoded_texts == stored
    controls.release(cards - 1)
    (collection,) = run_with(chunks, tmp_path, **options).collections
    assert (collection.status, collection.passes[0].stored_texts) == ("completed", stored)
    assert stored_rows(tmp_path) == TEXTS
    np.testing.assert_allclose(vectors_of(tmp_path), reference, atol=1e-5)


def test_what_a_device_computes_after_it_was_given_up_is_not_stored(
    chunks: Path, model: str, tmp_path: Path, controls: SimulatedControls, clock: Clock
) -> None:
    hangs = when(BatchEncoded, lambda: controls.hang(0), 2)
    options = {**OPTIONS, "models": model, "devices": "simulated:64MiB", "stall_timeout": "10m"}
    running = Running(chunks, tmp_path, hangs, **options)
    wait_until(lambda: len(running.encoded()) > 2)
    summary = running.result(clock)
    events, stored = len(running.seen), stored_rows(tmp_path)
    controls.release(0)
    wait_until(no_workers)
    assert (len(running.seen), stored_rows(tmp_path)) == (events, stored)
    assert summary.collections[0].passes[0].encoded_texts == stored


def test_a_device_may_hang_while_a_batch_is_started(tmp_path: Path, controls: SimulatedControls, clock: Clock) -> None:
    """Its worker holds the locks of the device and its own then: nobody may wait for them."""
    chunks, hung = write_texts(tmp_path, 60), threading.Event()

    def hang() -> None:
        controls.hang(0)
        hung.set()

    # larger than the device: every batch is streamed, and waited for before its start is over
    options = {"models": str(tiny_model("bert", hidden=256, layers=12)), "devices": "simulated:28MiB"}
    output = tmp_path / "out"
    running = Running(chunks, output, when(BatchEncoded, hang), batch_tokens=512, stall_timeout="30m", **options)
    wait_until(hung.is_set)
    (collection,) = running.result(clock).collections
    assert collection.status == "partial"
    assert "simulated:0 has not finished a batch for" in (collection.error or "")
    assert any(each.type == "oom_stream" for each in collection.mitigations)
    events, stored = len(running.seen), stored_rows(output)
    controls.release(0)
    wait_until(no_workers)
    assert (len(running.seen), stored_rows(output)) == (events, stored)


@pytest.mark.parametrize("way", ["to the device", "to the host"])
def test_a_device_may_hang_while_weights_are_moved(
    chunks: Path,
    model: str,
    tmp_path: Path,
    controls: SimulatedControls,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    hung, evict = threading.Event(), Placement.evict

    def hang(*_: object) -> None:
        controls.hang(0)
        hung.set()

    def hang_and_evict(placement: Placement) -> list[str]:
        hang()
        return evict(placement)

    if way == "to the host":
        monkeypatch.setattr(Placement, "evict", hang_and_evict)
    hangs = when(LeaseAcquired, hang if way == "to the device" else lambda: None)
    running = Running(chunks, tmp_path, hangs, models=model, stall_timeout="30m", **OPTIONS)
    wait_until(hung.is_set)
    (collection,) = running.result(clock).collections
    assert collection.status == "partial"
    assert "simulated:0 has not finished moving the weights for" in (collection.error or "")


def test_a_device_that_does_not_run_a_small_kernel_in_time_is_given_up(controls: SimulatedControls) -> None:
    (device, other) = open_devices("simulated:2x64MiB", MemoryLimits())
    controls.hang(0)
    assert not works_in_time(device, 0.2)
    assert device.hangs
    assert device.lost == "it has not run a small kernel for 0.2 s"
    assert works_in_time(other, None)
    other.release_cache()  # it would wait for both


def test_a_device_that_hangs_when_it_is_opened_is_left_out(
    controls: SimulatedControls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(capacities: list[int]) -> SimulatedControls:
        controls = simulate(capacities)
        controls.hang(0)
        return controls

    monkeypatch.setattr("ultimate_embedder.devices.open.simulate", hang)
    told: list[str] = []
    with pytest.raises(UsageError, match="none of these cards can compute"):
        open_devices("simulated:64MiB", MemoryLimits(), report=told.append, timeout_s=0.2)
    assert told == ["simulated:0 is not used: it cannot compute (no answer within 0.2 s)"]
