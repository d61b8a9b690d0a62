"""Sentences of the specification that no other test asserts, on simulated devices; each docstring has the sentence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import tiny_cross_encoder, tiny_model
from ultimate_embedder import RunSummary, embed
from ultimate_embedder.config import HubAccess, hub
from ultimate_embedder.devices import Leases, MemoryLimits, open_devices
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.events import Event, LeaseReleased
from ultimate_embedder.execution import local, rerank
from ultimate_embedder.execution.placement import Placement
from ultimate_embedder.execution.worker import Worker
from ultimate_embedder.models import Encoder, TokenBatch, load_reranker, resolve_reranker
from ultimate_embedder.planning import Turn, steps

MiB = 1 << 20
NAMES = ["tiny-bert", "tiny-qwen2"]
TEXTS = 96
MakeRun = Callable[..., RunSummary]


@pytest.fixture(autouse=True)
def controls() -> Iterator[SimulatedControls]:
    """The devices' knobs; after every test the devices are empty."""
    controls = simulate([MiB, MiB])
    yield controls
    controls.resize([MiB, MiB])
    assert [controls.usage(device)["allocated"] for device in range(2)] == [0, 0]


@pytest.fixture
def run(tmp_path: Path) -> MakeRun:
    """Embed texts of several lengths with two models on two devices; the output is `out`, or what `name` says."""
    (tmp_path / "chunks" / "c").mkdir(parents=True)
    texts = [f"{number:04} " + "word " * (3 + number % 20) for number in range(TEXTS)]
    (tmp_path / "chunks" / "c" / "t_chunks.json").write_text(json.dumps(texts))
    models = [str(tiny_model("bert", hidden=64, layers=3)), str(tiny_model("qwen2", hidden=96, layers=3))]

    usual = {"models": models, "devices": "simulated:2x64MiB", "fusion": "concat", "exports": "npy", "quiet": True}

    def run_with(name: str = "out", **options: Any) -> RunSummary:
        return embed(tmp_path / "chunks", tmp_path / name, **{**usual, "batch_tokens": 512, **options})

    return run_with


def vectors_of(output: Path) -> np.ndarray:
    return np.asarray(np.load(output / "c" / "embeddings.npy"))


def batches_of(output: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "BatchEncoded"]


# -- companions


def test_companions_release_their_activations_between_batches(run: MakeRun, tmp_path: Path) -> None:
    """Specified: "release their allocations between batches": before each batch there are weights and little else."""
    run(mode="simultaneous", precision="fp32")
    batches = [batch for batch in batches_of(tmp_path / "out") if batch["model"] == NAMES[1]]
    assert len(batches) > 3
    assert {batch["device"] for batch in batches} == {"simulated:1"}
    before = [batch["memory_before"]["allocated_bytes"] for batch in batches]
    activations = batches[0]["memory"]["peak_bytes"] - before[0]
    assert max(before) - min(before) < 0.05 * activations


def test_companions_release_their_weights_too_where_that_is_asked_for(
    run: MakeRun, tmp_path: Path, controls: SimulatedControls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Specified: "release their allocations between batches": with --release-companions, every so many texts."""
    monkeypatch.setattr(steps, "WINDOW_ROWS", TEXTS // 4)
    release_weights, left = Worker.release_weights, []

    def noted(self: Worker) -> None:
        release_weights(self)
        left.append((self.device.name, controls.usage(1)["allocated"]))

    run(mode="simultaneous")
    monkeypatch.setattr(Worker, "release_weights", noted)
    (collection,) = run("released", mode="simultaneous", release_companions=True).collections
    assert left == [("simulated:1", 0)] * 4
    assert {each.type for each in collection.mitigations} == {"companion_gpu_routed"}
    assert np.array_equal(vectors_of(tmp_path / "released"), vectors_of(tmp_path / "out"))


@pytest.mark.parametrize(
    ("devices", "line"),
    [
        ("simulated:2x64MiB", "c: tiny-qwen2 works on simulated:1: simulated:1 has room for it"),
        ("simulated:64MiB", "c: tiny-qwen2 works on cpu: there is no second GPU"),
    ],
)
def test_the_spillover_is_logged(run: MakeRun, capsys: pytest.CaptureFixture[str], devices: str, line: str) -> None:
    """Specified: "logs the spillover so the run summary records the dual-GPU execution"."""
    run(mode="simultaneous", devices=devices, quiet=False)
    assert line in capsys.readouterr().err.splitlines()


# -- passes


def test_a_qwen2_model_that_runs_out_of_memory_in_mid_forward_completes_within_an_ensemble(
    run: MakeRun, tmp_path: Path, controls: SimulatedControls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Specified: "it applies configured mitigation [...] and completes the batch without aborting the run"."""
    run(mode="exclusive", precision="fp32")
    forward, first = Encoder.forward, iter([True])

    def failing_once(self: Encoder, batch: TokenBatch) -> Any:
        if self.name == NAMES[1] and batch.tokens > 200 and next(first, False):  # of the texts, no trial
            controls.fail_after(0, 30)
            controls.fail_after(1, 30)
        return forward(self, batch)

    monkeypatch.setattr(Encoder, "forward", failing_once)
    (collection,) = run("pressed", mode="exclusive", precision="fp32").collections
    assert collection.status == "completed"
    kinds = [(each.details["model"], each.type) for each in collection.mitigations]
    assert (NAMES[1], "oom_bisect") in kinds
    assert np.abs(vectors_of(tmp_path / "pressed") - vectors_of(tmp_path / "out")).max() < 1e-5


@pytest.mark.parametrize("mode", ["exclusive", "sequential"])
def test_adaptive_controllers_reset_per_pass(run: MakeRun, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Specified: "Adaptive controllers will reset per pass": a pass learns from its own batches only."""
    monkeypatch.setattr(steps, "TURN", Turn(first_texts=TEXTS // 2, most_texts=TEXTS // 2, multiple_of=1))
    known: list[tuple[str, bool]] = []

    def noted(encoder: Encoder, *rest: Any, **options: Any) -> Worker:
        known.append((encoder.name, options["learned"] is not None))
        return Worker(encoder, *rest, **options)

    monkeypatch.setattr(local, "Worker", noted)
    run(mode=mode, devices="simulated:64MiB")
    fresh = [(name, False) for name in NAMES]
    assert known == (fresh if mode == "exclusive" else [*fresh, *((name, True) for name in NAMES)])


@pytest.mark.parametrize("mode", ["exclusive", "sequential", "simultaneous"])
def test_progress_is_indexed_by_pass_and_batch_and_counts_nothing_twice(
    run: MakeRun, tmp_path: Path, mode: str
) -> None:
    """Specified: "batch progress indexes switch to `(model_pass, batch_index)` to avoid double counting"."""
    run(mode=mode)
    batches = batches_of(tmp_path / "out")
    indexes = [(batch["model_pass"], batch["batch_index"]) for batch in batches]
    assert len(set(indexes)) == len(indexes)
    rows = Counter[tuple[int, str]]()
    for batch in batches:
        rows[batch["model_pass"], batch["model"]] += batch["rows"]
    assert rows == dict.fromkeys(enumerate(NAMES), TEXTS)


@pytest.mark.parametrize("mode", ["sequential", "simultaneous"])
def test_matryoshka_truncation_is_deterministic_across_passes(run: MakeRun, tmp_path: Path, mode: str) -> None:
    """Specified: "ensure matryoshka truncation paths remain deterministic across passes"."""
    for name, chosen in (("out", "exclusive"), (mode, mode)):
        run(name, mode=chosen, dim=32, fusion="weighted_average")
    exclusive, other = vectors_of(tmp_path / "out"), vectors_of(tmp_path / mode)
    assert exclusive.shape == (TEXTS, 32)
    assert np.abs(exclusive - other).max() < 1e-5
    assert np.abs(np.linalg.norm(exclusive, axis=1) - 1).max() < 1e-6


def test_batch_hints_can_be_tuned_per_model(run: MakeRun) -> None:
    """Specified: "enabling per-model tuning of batch hints"."""
    (collection,) = run(mode="exclusive", batch_tokens=f"{NAMES[0]}=256,{NAMES[1]}=1024").collections
    assert [each.batch_tokens for each in collection.passes] == [256, 1024]
    first, second = (each.largest_batch_tokens for each in collection.passes)
    assert first <= 256 < second <= 1024


# -- leases


def test_what_a_wrapper_leaves_behind_is_a_warning(run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Specified: "defensive unwrap logic plus telemetry alerts will highlight residue requiring follow-up"."""
    evict = Placement.evict
    monkeypatch.setattr(Placement, "evict", lambda self: [*evict(self), "a wrapper"])
    (collection,) = run(mode="exclusive").collections
    assert [each.leftovers for each in collection.leases if each.event_type == "release"] == [["a wrapper"]] * 2
    assert [name in warning for name, warning in zip(NAMES, collection.warnings, strict=True)] == [True, True]


def test_a_reranker_leases_a_gpu_and_gives_it_back(seen: list[Event], controls: SimulatedControls) -> None:
    """Specified: "keep reranker/companion models compliant with leases"."""
    controls.resize([64 * MiB, 64 * MiB])
    devices = open_devices("simulated:2x64MiB", MemoryLimits())
    model = resolve_reranker(str(tiny_cross_encoder()), HubAccess(offline=True), seen.append)
    reranker = load_reranker(model, "float32")
    rerank("which?", ["one", "two"], reranker, lambda: reranker, devices[:1], Leases(), seen.append)
    (released,) = [event for event in seen if isinstance(event, LeaseReleased)]
    assert (released.devices, released.placement) == (["simulated:0"], "1 copy, on simulated:0")
    assert released.memory[0].peak_bytes > reranker.weight_bytes
    assert (released.memory[0].allocated_bytes, released.leftovers) == (0, [])


# -- models


def test_the_cache_of_kaggle_is_searched_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Specified: "explicit cache paths (default `/root/.cache/huggingface/hub`)"."""
    assert str(hub.KAGGLE_CACHE) == "/root/.cache/huggingface/hub"
    monkeypatch.setattr(hub, "KAGGLE_CACHE", tmp_path)
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert tmp_path in HubAccess().caches
