"""A card that dies: the others go on, or a fresh process, or the CPU; nothing is lost, doubled or wrong."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.clock import wait_until
from tests.support.faults import (
    ASSERTED,
    ECC,
    ILLEGAL_ACCESS,
    LAUNCH_FAILURE,
    OFF_THE_BUS,
    TEXTS,
    TIMED_OUT,
    UNKNOWN,
    events_of,
    run_with,
    stored_rows,
    vectors_of,
    when,
    write_texts,
)
from tests.support.slow import slow
from tests.support.tiny_models import tiny_cross_encoder, tiny_model
from ultimate_embedder.config import HubAccess
from ultimate_embedder.devices import CpuDevice, Device, Leases, MemoryLimits, open_devices
from ultimate_embedder.devices.lost import is_doubtful, says_lost
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.events import (
    BatchEncoded,
    Event,
    LeaseAcquired,
    LeaseReleased,
    Mitigated,
    PassFinished,
    PassStarted,
)
from ultimate_embedder.execution import rerank
from ultimate_embedder.models import load_reranker, resolve_reranker
from ultimate_embedder.summary import CollectionSummary, RunSummary

MiB = 1 << 20
CARDS = "simulated:2x64MiB"
NAMES = ("simulated:0", "simulated:1")
MANY_BATCHES: dict[str, Any] = {"batch_tokens": 512, "devices": CARDS}


@pytest.fixture(autouse=True)
def controls() -> Iterator[SimulatedControls]:
    """The devices' knobs; after every test the devices are empty."""
    controls = simulate([64 * MiB] * 2)
    yield controls
    controls.resize([64 * MiB] * 2)

    def is_empty() -> bool:
        gc.collect()
        return [controls.usage(device)["allocated"] for device in range(2)] == [0, 0]

    wait_until(is_empty)  # a thread of the run may be about to end


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def models() -> list[str]:
    return [str(tiny_model("bert")), str(tiny_model("qwen2", hidden=48))]


@pytest.fixture(scope="module")
def reference(chunks: Path, models: list[str], tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The vectors of both models, from the CPU."""
    output = tmp_path_factory.mktemp("reference")
    run_with(chunks, output, models=models, devices="cpu")
    return vectors_of(output)


def only(summary: RunSummary) -> CollectionSummary:
    (collection,) = summary.collections
    return collection


def kinds(collection: CollectionSummary) -> Counter[str]:
    return Counter(each.type for each in collection.mitigations)


def lost(collection: CollectionSummary) -> list[dict[str, Any]]:
    return [each.details for each in collection.mitigations if each.type == "device_lost"]


def assert_complete(summary: RunSummary, output: Path, reference: np.ndarray) -> None:
    collection, passes = only(summary), only(summary).passes
    assert (collection.status, collection.error) == ("completed", None)
    width = sum(each.dim or 0 for each in passes)
    expected = reference[:, :width] / np.linalg.norm(reference[:, :width], axis=1, keepdims=True)
    vectors = vectors_of(output)
    assert vectors.shape == expected.shape
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert stored_rows(output) == TEXTS * len(passes)
    assert [each.encoded_texts for each in passes] == [TEXTS] * len(passes)
    assert [each.stored_texts for each in passes] == [0] * len(passes)
    assert collection.chunks.embedded == collection.chunks.newly_encoded == TEXTS
    assert not [warning for warning in collection.warnings if "Traceback" in warning or "left on the device" in warning]


def test_the_errors_of_cards_that_died_are_known() -> None:
    for message in (LAUNCH_FAILURE, ILLEGAL_ACCESS, ASSERTED, TIMED_OUT, ECC, OFF_THE_BUS):
        assert says_lost(RuntimeError(message)), message
    assert is_doubtful(RuntimeError(UNKNOWN))  # a kernel decides


@pytest.mark.parametrize(
    "message",
    [LAUNCH_FAILURE, OFF_THE_BUS, UNKNOWN, slow(ILLEGAL_ACCESS), slow(ASSERTED), slow(TIMED_OUT), slow(ECC)],
)
def test_the_other_card_does_the_work_of_one_that_dies(
    chunks: Path, models: list[str], reference: np.ndarray, tmp_path: Path, controls: SimulatedControls, message: str
) -> None:
    dies = when(PassStarted, lambda: controls.die_after(0, 300, message))
    summary = run_with(chunks, tmp_path, dies, models=models[:1], **MANY_BATCHES)
    assert_complete(summary, tmp_path, reference)
    (death,) = lost(only(summary))
    assert (death["device"], death["error"], death["model"]) == ("simulated:0", message, "tiny-bert")
    assert death["rows"] > 0
    assert only(summary).passes[0].tokens_by_device["simulated:1"] > 0
    (warning,) = [each for each in only(summary).warnings if "simulated:0" in each]
    assert message in warning


@pytest.mark.parametrize(
    ("operations", "device"),
    [
        *((0, 0), (10, 1), (60, 0), (110, 1), (400, 0), (900, 1)),
        *(slow(0, 1), slow(10, 0), slow(60, 1), slow(110, 0), slow(400, 1), slow(900, 0)),
    ],
)
def test_it_does_not_matter_when_a_card_dies(
    chunks: Path,
    models: list[str],
    reference: np.ndarray,
    tmp_path: Path,
    controls: SimulatedControls,
    operations: int,
    device: int,
) -> None:
    dies = when(PassStarted, lambda: controls.die_after(device, operations, ILLEGAL_ACCESS))
    summary = run_with(chunks, tmp_path, dies, models=models[:1], **MANY_BATCHES)
    assert_complete(summary, tmp_path, reference)
    assert [death["device"] for death in lost(only(summary))] == [NAMES[device]]


@pytest.mark.parametrize("event", [slow(LeaseAcquired), BatchEncoded, slow(LeaseReleased)])
@pytest.mark.parametrize(
    ("mode", "device"),
    [
        *(("exclusive", 0), ("sequential", 1), ("simultaneous", 0)),
        *(slow("exclusive", 1), slow("sequential", 0), slow("simultaneous", 1)),
    ],
)
def test_a_card_may_die_at_any_point_of_any_mode(
    chunks: Path,
    models: list[str],
    reference: np.ndarray,
    tmp_path: Path,
    controls: SimulatedControls,
    mode: str,
    device: int,
    event: type[Event],
) -> None:
    dies = when(event, lambda: controls.die_after(device, 0, LAUNCH_FAILURE))
    summary = run_with(chunks, tmp_path, dies, models=models, mode=mode, **MANY_BATCHES)
    assert_complete(summary, tmp_path, reference)
    assert {death["device"] for death in lost(only(summary))} <= {NAMES[device]}


def test_a_card_may_die_while_vectors_are_fetched(
    chunks: Path, models: list[str], reference: np.ndarray, tmp_path: Path, controls: SimulatedControls
) -> None:
    # between two batches there is always one whose vectors are on their way
    dies = when(BatchEncoded, lambda: controls.die_after(1, 0, ASSERTED), 1)
    assert_complete(run_with(chunks, tmp_path, dies, models=models[:1], **MANY_BATCHES), tmp_path, reference)


def test_rows_of_an_attempt_that_ended_with_its_devices_are_counted(
    chunks: Path, models: list[str], tmp_path: Path, controls: SimulatedControls, seen: list[Event]
) -> None:
    dies = when(BatchEncoded, lambda: controls.die_after(0, 0, OFF_THE_BUS), 2)
    run_with(chunks, tmp_path, dies, seen.append, models=models[:1], **{**MANY_BATCHES, "devices": "simulated:64MiB"})
    (finished,) = [event for event in seen if isinstance(event, PassFinished)]
    assert finished.rows == TEXTS
    assert finished.devices == ["simulated:0", "cpu"]


@pytest.mark.parametrize("device", [0, 1])
def test_a_group_goes_on_without_the_member_that_died(
    chunks: Path, models: list[str], reference: np.ndarray, tmp_path: Path, controls: SimulatedControls, device: int
) -> None:
    dies = when(BatchEncoded, lambda: controls.die_after(device, 5, LAUNCH_FAILURE), 1)
    summary = run_with(chunks, tmp_path, dies, models=models[:1], parallelism="data-parallel", **MANY_BATCHES)
    assert_complete(summary, tmp_path, reference)
    shares = only(summary).passes[0].tokens_by_device
    assert list(shares) == ["simulated:0+simulated:1", NAMES[1 - device]]


def test_the_next_collection_does_without_the_lost_card(
    models: list[str], tmp_path: Path, controls: SimulatedControls
) -> None:
    write_texts(tmp_path, 40, "a")
    chunks = write_texts(tmp_path, 40, "b")
    dies = when(PassStarted, lambda: controls.die_after(0, 5, ILLEGAL_ACCESS))
    first, second = run_with(chunks, tmp_path / "out", dies, models=models[:1], **MANY_BATCHES).collections
    assert (first.status, second.status) == ("completed", "completed")
    assert second.passes[0].devices == ["simulated:1"]
    assert lost(second) == []
    np.testing.assert_allclose(vectors_of(tmp_path / "out", "a"), vectors_of(tmp_path / "out", "b"), atol=1e-5)


@pytest.mark.parametrize("mode", ["exclusive", slow("simultaneous")])
def test_a_fresh_process_goes_on_when_every_card_is_lost(
    chunks: Path, models: list[str], reference: np.ndarray, tmp_path: Path, controls: SimulatedControls, mode: str
) -> None:
    dies = when(BatchEncoded, lambda: controls.die_after(0, 30, ILLEGAL_ACCESS, all_devices=True), 3)
    summary = run_with(chunks, tmp_path, dies, models=models, mode=mode, **MANY_BATCHES)
    assert_complete(summary, tmp_path, reference)
    assert {death["device"] for death in lost(only(summary))} == set(NAMES)
    assert kinds(only(summary))["fresh_process"] == 1
    assert any("fresh process" in warning for warning in summary.warnings)
    names = [event["event"] for event in events_of(tmp_path)]
    assert (names[0], names[-1]) == ("RunStarted", "RunFinished")
    assert (names.count("RunStarted"), names.count("RunFinished")) == (1, 1)
    assert [event["collection"] for event in events_of(tmp_path) if event["event"] == "CollectionFinished"] == ["c"]


@pytest.mark.slow
def test_collections_that_are_done_are_not_touched_by_the_fresh_process(
    models: list[str], tmp_path: Path, controls: SimulatedControls
) -> None:
    for name in ("a", "b"):
        write_texts(tmp_path, 60, name, empty=2)
    chunks = write_texts(tmp_path, 60, "c", empty=2)
    dies = when(PassFinished, lambda: controls.die_after(0, 20, ILLEGAL_ACCESS, all_devices=True))
    summary = run_with(chunks, tmp_path / "out", dies, models=models[:1], fresh=True, **MANY_BATCHES)
    assert [(each.collection, each.status) for each in summary.collections] == [(name, "completed") for name in "abc"]
    assert [len(each.passes) for each in summary.collections] == [1, 1, 1]
    assert [(each.chunks.found, each.chunks.rejected, len(each.rejected)) for each in summary.collections] == [
        (62, 2, 2)
    ] * 3
    started = [event["collection"] for event in events_of(tmp_path / "out") if event["event"] == "CollectionStarted"]
    assert started == ["a", "b", "b", "c"]
    for name in "abc":
        assert stored_rows(tmp_path / "out", name) == 60
        np.testing.assert_allclose(vectors_of(tmp_path / "out", name), vectors_of(tmp_path / "out", "a"), atol=1e-5)


def test_without_any_card_the_cpu_goes_on(
    chunks: Path, models: list[str], reference: np.ndarray, tmp_path: Path, controls: SimulatedControls
) -> None:
    dies = when(BatchEncoded, lambda: controls.die_after(0, 30, OFF_THE_BUS, all_devices=True), 3)
    summary = run_with(chunks, tmp_path, dies, models=models[:1], **MANY_BATCHES)
    assert_complete(summary, tmp_path, reference)
    assert kinds(only(summary)).items() >= {"device_lost": 2, "no_device_left": 1}.items()
    assert only(summary).passes[0].tokens_by_device["cpu"] > 0
    assert any("CPU" in warning for warning in only(summary).warnings)


@pytest.mark.parametrize("operations", [50, slow(400), 800, slow(1600)])
def test_a_card_may_die_while_it_is_short_of_memory(
    chunks: Path, models: list[str], reference: np.ndarray, tmp_path: Path, controls: SimulatedControls, operations: int
) -> None:
    dies = when(LeaseAcquired, lambda: controls.die_after(0, operations, LAUNCH_FAILURE))
    summary = run_with(chunks, tmp_path, dies, models=models[:1], devices="simulated:2x5MiB", batch_rows=64)
    assert_complete(summary, tmp_path, reference)
    assert [death["device"] for death in lost(only(summary))] == ["simulated:0"]


@pytest.mark.slow
def test_models_that_share_a_card_are_lost_and_go_on_together(
    chunks: Path, models: list[str], reference: np.ndarray, tmp_path: Path, controls: SimulatedControls
) -> None:
    dies = when(BatchEncoded, lambda: controls.die_after(0, 40, ILLEGAL_ACCESS), 5)
    options: dict[str, Any] = {**MANY_BATCHES, "devices": "simulated:64MiB", "companions": "share"}
    summary = run_with(chunks, tmp_path, dies, models=models, mode="simultaneous", **options)
    assert_complete(summary, tmp_path, reference)
    assert kinds(only(summary))["fresh_process"] == 1


def test_if_the_cpu_cannot_go_on_either_the_run_can_be_resumed(
    chunks: Path,
    models: list[str],
    reference: np.ndarray,
    tmp_path: Path,
    controls: SimulatedControls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_room(*_: Any) -> None:
        raise MemoryError("no room")

    dies = when(BatchEncoded, lambda: controls.die_after(0, 30, OFF_THE_BUS, all_devices=True), 3)
    with monkeypatch.context() as patched:
        patched.setattr(CpuDevice, "parts", no_room)
        collection = only(run_with(chunks, tmp_path, dies, models=models[:1], **MANY_BATCHES))
    assert collection.status == "partial"
    assert "every GPU stopped working, and the CPU has no room" in (collection.error or "")
    assert 0 < stored_rows(tmp_path) < TEXTS
    assert only(run_with(chunks, tmp_path, models=models[:1], **MANY_BATCHES)).status == "completed"
    assert stored_rows(tmp_path) == TEXTS
    np.testing.assert_allclose(vectors_of(tmp_path), reference[:, :64] * np.sqrt(2), atol=1e-5)


def test_an_error_that_is_no_death_is_still_an_error(
    chunks: Path, models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")

    monkeypatch.setattr("ultimate_embedder.models.encoder.Encoder.forward", broken)
    collection = only(run_with(chunks, tmp_path, models=models[:1], **MANY_BATCHES))
    assert collection.status == "failed"
    assert "must match the size" in (collection.error or "")
    assert lost(collection) == []


@pytest.mark.parametrize("all_devices", [False, True])
def test_a_reranker_goes_on_elsewhere(controls: SimulatedControls, seen: list[Event], all_devices: bool) -> None:
    model = resolve_reranker(str(tiny_cross_encoder()), HubAccess(offline=True), seen.append)
    texts = [f"{number} " * (number % 60 + 1) for number in range(40)]
    load = partial(load_reranker, model, "float32")

    def scores(devices: list[Device]) -> np.ndarray:
        return rerank("which?", texts, load(), load, devices, Leases(), seen.append, reload=load).scores

    expected = scores([CpuDevice()])
    devices = open_devices(CARDS, MemoryLimits())
    controls.die_after(0, 80, LAUNCH_FAILURE, all_devices=all_devices)
    np.testing.assert_allclose(scores(devices), expected, atol=1e-5)
    deaths = [event for event in seen if isinstance(event, Mitigated) and event.kind == "device_lost"]
    assert [event.details["device"] for event in deaths] == list(NAMES if all_devices else NAMES[:1])
    leased = [event.devices for event in seen if isinstance(event, LeaseAcquired)]
    assert leased[-1] == ["cpu" if all_devices else "simulated:1"]
