"""Ensembles on simulated devices, through the front door: the vectors of the CPU in every mode, within its memory."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import Architecture, tiny_model
from ultimate_embedder import RunSummary, embed
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.errors import MissingModelError
from ultimate_embedder.events import BatchEncoded, CollectionFinished, Event
from ultimate_embedder.execution import windows
from ultimate_embedder.models import Encoder, TokenBatch
from ultimate_embedder.options import make_config
from ultimate_embedder.pipeline import run as run_pipeline
from ultimate_embedder.planning import Turn, steps
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.summary import CollectionSummary, LeaseSummary

MiB = 1 << 20
MODES = ("simultaneous", "sequential", "exclusive")
NAMES = ["tiny-bert", "tiny-xlm-roberta", "tiny-qwen2"]
TEXTS = 120
OPTIONS: dict[str, Any] = {"precision": "fp32", "fusion": "concat", "exports": "npy", "quiet": True}
MakeRun = Callable[..., RunSummary]


def three_models(hidden: tuple[int, int, int] = (64, 48, 96), layers: int = 3) -> list[str]:
    architectures: tuple[Architecture, ...] = ("bert", "xlm-roberta", "qwen2")
    return [str(tiny_model(each, hidden=size, layers=layers)) for each, size in zip(architectures, hidden, strict=True)]


def write_collection(folder: Path, count: int) -> None:
    rng = random.Random(0)
    texts = [f"{number:04} " + "word " * rng.randint(6, 11) for number in range(count)]
    folder.mkdir(parents=True)
    (folder / "t_chunks.json").write_text(json.dumps(texts))


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Collection `c`, `d` with the same texts, and `few`."""
    root = tmp_path_factory.mktemp("chunks")
    for name, count in (("c", TEXTS), ("d", TEXTS), ("few", 24)):
        write_collection(root / name, count)
    return root


@pytest.fixture(scope="module")
def reference(chunks: Path, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The vectors of the three models, from the CPU."""
    output = tmp_path_factory.mktemp("reference")
    embed(chunks, output, models=three_models(), collections="c", devices="cpu", **OPTIONS)
    vectors = vectors_of(output)
    assert vectors.shape == (TEXTS, 64 + 48 + 96)
    return vectors


@pytest.fixture
def run(chunks: Path, tmp_path: Path) -> MakeRun:
    """Embed collection `c` with the three models."""

    def run_with(**options: Any) -> RunSummary:
        return embed(chunks, tmp_path, **{"models": three_models(), "collections": "c", **OPTIONS, **options})

    return run_with


@pytest.fixture(autouse=True)
def controls() -> Iterator[SimulatedControls]:
    """The devices' knobs; after every test the devices are empty."""
    controls = simulate([MiB, MiB])
    yield controls
    controls.resize([MiB, MiB])
    assert [controls.usage(device)["allocated"] for device in range(2)] == [0, 0]


def vectors_of(output: Path, collection: str = "c") -> np.ndarray:
    return np.asarray(np.load(output / collection / "embeddings.npy"))


def assert_same(vectors: np.ndarray, reference: np.ndarray) -> None:
    assert vectors.shape == reference.shape
    assert (vectors * reference).sum(1).min() > 0.99999
    assert np.abs(vectors - reference).max() < 1e-5


def mitigations(collection: CollectionSummary) -> Counter[str]:
    return Counter(each.type for each in collection.mitigations)


def leases(collection: CollectionSummary, kind: str, model: str | None = None) -> list[LeaseSummary]:
    return [each for each in collection.leases if each.event_type == kind and model in (None, each.model)]


def shares(collection: CollectionSummary) -> list[dict[str, float]]:
    return [
        {device: tokens / each.tokens for device, tokens in each.tokens_by_device.items()} for each in collection.passes
    ]


@pytest.mark.parametrize("cards", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_vectors_of_the_cpu(
    run: MakeRun, tmp_path: Path, reference: np.ndarray, mode: str, cards: int
) -> None:
    (collection,) = run(mode=mode, devices=f"simulated:{cards}x256MiB").collections
    assert_same(vectors_of(tmp_path), reference)
    assert (collection.status, collection.mode, collection.mode_reason) == ("completed", mode, "asked for")
    assert [each.encoded_texts for each in collection.passes] == [TEXTS] * 3
    assert collection.warnings == []


@pytest.mark.parametrize("parallelism", ["data-parallel", "none"])
def test_every_parallelism_gives_them_too(
    run: MakeRun, tmp_path: Path, reference: np.ndarray, parallelism: str
) -> None:
    (collection,) = run(mode="exclusive", parallelism=parallelism, devices="simulated:2x256MiB").collections
    assert_same(vectors_of(tmp_path), reference)
    device = "simulated:0+simulated:1" if parallelism == "data-parallel" else "simulated:0"
    assert shares(collection) == [{device: 1.0}] * 3
    assert collection.warnings == []


@pytest.fixture(scope="module")
def real_pair(minilm: Path, granite: Path) -> list[str]:
    return [str(minilm), f"{granite}=0.5"]


@pytest.fixture(scope="module")
def pair_reference(docling_sample: Path, real_pair: list[str], tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    output = tmp_path_factory.mktemp("pair")
    embed(docling_sample, output, models=real_pair, devices="cpu", max_tokens=64, **OPTIONS)
    return vectors_of(output, "Docling")


@pytest.mark.parametrize("mode", MODES)
def test_a_real_pair_gives_the_vectors_of_the_cpu(
    docling_sample: Path, real_pair: list[str], pair_reference: np.ndarray, tmp_path: Path, mode: str
) -> None:
    options = {**OPTIONS, "models": real_pair, "mode": mode, "max_tokens": 64}
    (collection,) = embed(docling_sample, tmp_path, devices="simulated:2x15GiB", **options).collections
    assert_same(vectors_of(tmp_path, "Docling"), pair_reference)
    assert pair_reference.shape == (40, 384 + 384)
    assert collection.fusion is not None
    assert list(collection.fusion.weights.values()) == pytest.approx([2 / 3, 1 / 3])
    assert collection.warnings == []


@pytest.fixture(scope="module")
def many_chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many")
    write_collection(root / "c", 1600)
    return root


def test_two_equal_devices_share_an_exclusive_pass_equally(
    many_chunks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Encoder.forward

    def as_fast_as_the_other(self: Encoder, batch: TokenBatch) -> Any:
        time.sleep(batch.padded_tokens * 2e-5)  # the cores that both run on are not shared as equally
        return forward(self, batch)

    monkeypatch.setattr(Encoder, "forward", as_fast_as_the_other)
    monkeypatch.setattr(windows, "FIRST_WINDOWS", ())
    monkeypatch.setattr(windows, "WINDOW_ROWS", 400)
    options = {**OPTIONS, "models": three_models()[:2], "mode": "exclusive"}
    (collection,) = embed(many_chunks, tmp_path, devices="simulated:2x128MiB", **options).collections
    for share in shares(collection):
        assert set(share) == {"simulated:0", "simulated:1"}
        assert all(0.4 < part < 0.6 for part in share.values()), share


def test_a_device_with_a_third_of_the_memory_takes_part_as_well_as_it_can(many_chunks: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "models": three_models()[:2], "mode": "exclusive"}
    (collection,) = embed(many_chunks, tmp_path, devices="simulated:48MiB+16MiB", **options).collections
    assert (collection.status, collection.chunks.embedded) == ("completed", 1600)
    for each in collection.passes:
        assert set(each.tokens_by_device) == {"simulated:0", "simulated:1"}
        assert sum(each.tokens_by_device.values()) == each.tokens


def test_companions_go_to_the_second_device(
    run: MakeRun, tmp_path: Path, reference: np.ndarray, controls: SimulatedControls
) -> None:
    (collection,) = run(mode="simultaneous", devices="simulated:2x48MiB", gpu0_ceiling="36MiB").collections
    assert_same(vectors_of(tmp_path), reference)
    assert [each.devices for each in collection.passes] == [["simulated:0"], ["simulated:1"], ["simulated:1"]]
    moves = [each.details for each in collection.mitigations if each.type == "companion_gpu_routed"]
    assert [(move["model"], move["after"]) for move in moves] == [(name, "simulated:1") for name in NAMES[1:]]
    assert 0 < controls.usage(0)["high_water"] <= 36 * MiB


def test_companions_that_have_no_room_on_the_second_device_go_to_the_cpu(
    run: MakeRun, tmp_path: Path, reference: np.ndarray, controls: SimulatedControls
) -> None:
    (collection,) = run(mode="simultaneous", devices="simulated:48MiB+6MiB").collections
    assert_same(vectors_of(tmp_path), reference)
    assert [each.devices for each in collection.passes] == [["simulated:0"], ["simulated:1"], ["cpu"]]
    kinds = mitigations(collection)
    assert (kinds["companion_gpu_routed"], kinds["companion_cpu_fallback"]) == (1, 1)
    assert 0 < controls.usage(0)["high_water"] <= 48 * MiB * 0.92


@pytest.fixture(scope="module")
def large_models() -> list[str]:
    """42 MiB of weights."""
    return three_models((256, 256, 256), layers=4)


@pytest.fixture(scope="module")
def large_reference(chunks: Path, large_models: list[str], tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    output = tmp_path_factory.mktemp("large")
    embed(chunks, output, models=large_models, collections="few", devices="cpu", **OPTIONS)
    return vectors_of(output, "few")


@pytest.mark.parametrize("mode", ["sequential", "exclusive"])
def test_models_that_do_not_fit_together_run_one_after_the_other_below_the_ceiling(
    run: MakeRun,
    large_models: list[str],
    large_reference: np.ndarray,
    tmp_path: Path,
    controls: SimulatedControls,
    mode: str,
) -> None:
    options = {"models": large_models, "collections": "few", "gpu0_ceiling": "40MiB"}
    (collection,) = run(mode=mode, devices="simulated:96MiB", **options).collections
    assert_same(vectors_of(tmp_path, "few"), large_reference)
    assert 16 * MiB < controls.usage(0)["high_water"] <= 40 * MiB
    assert "weights_on_host" not in mitigations(collection)


def test_auto_means_simultaneous_where_all_fit(run: MakeRun) -> None:
    summary = run(devices="simulated:2x256MiB")
    assert summary.ensemble_mode == summary.collections[0].mode == "simultaneous"
    assert "all models fit on the GPUs" in summary.collections[0].mode_reason


def test_auto_means_exclusive_where_they_do_not(run: MakeRun) -> None:
    (collection,) = run(devices="simulated:96MiB").collections
    assert collection.mode == "exclusive"
    assert "MB for tiny-xlm-roberta beside the models before it" in collection.mode_reason


def test_the_primary_that_is_kept_is_there_for_the_next_collection(
    run: MakeRun, tmp_path: Path, reference: np.ndarray
) -> None:
    options = {"mode": "exclusive", "devices": "simulated:256MiB", "keep_primary": True}
    first, second = run(collections="c,d", **options).collections
    assert [lease.saved_bytes > 0 for lease in leases(first, "acquire")] == [False, False, False]
    assert [lease.saved_bytes > 0 for lease in leases(second, "acquire")] == [True, False, False]
    assert [lease.kept_bytes > 0 for lease in leases(first, "release")] == [True, False, False]
    assert [(lease.model, lease.why) for lease in leases(second, "evict")] == [(NAMES[0], "the run is over")]
    for name in ("c", "d"):
        assert_same(vectors_of(tmp_path, name), reference)


def test_the_primary_that_is_kept_gives_way_when_memory_is_short(
    run: MakeRun, tmp_path: Path, reference: np.ndarray
) -> None:
    (collection,) = run(mode="exclusive", devices="simulated:48MiB", keep_primary=True).collections
    assert [lease.evicted for lease in leases(collection, "acquire")] == [[], [NAMES[0]], []]
    assert [lease.why for lease in leases(collection, "evict")] == [f"{NAMES[1]} needs the room"]
    assert_same(vectors_of(tmp_path), reference)


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> int:
    """Turns of a quarter of the texts, so that there are four."""
    monkeypatch.setattr(steps, "TURN", Turn(first_texts=TEXTS // 4, most_texts=TEXTS // 4, multiple_of=1))
    return 4


def test_models_that_take_turns_leave_nothing_between_them(
    run: MakeRun, tmp_path: Path, reference: np.ndarray, short_turns: int
) -> None:
    (collection,) = run(mode="sequential", devices="simulated:2x256MiB").collections
    assert collection.turn_texts == [TEXTS // 4] * short_turns
    assert [lease.model for lease in leases(collection, "acquire")] == NAMES * short_turns
    for lease in collection.leases:
        assert [now["allocated_bytes"] for now in lease.memory] == [0, 0]
        assert lease.leftovers == []
    assert_same(vectors_of(tmp_path), reference)


def test_a_warm_cache_saves_moving_from_the_second_turn_on(
    run: MakeRun, tmp_path: Path, reference: np.ndarray, short_turns: int
) -> None:
    (collection,) = run(mode="sequential", devices="simulated:256MiB", warm_cache=True).collections
    saved = [lease.saved_bytes > 0 for lease in leases(collection, "acquire")]
    assert saved == [False] * 3 + [True] * 3 * (short_turns - 1)
    assert leases(collection, "acquire")[3].saved_seconds > 0
    assert Counter(lease.why for lease in leases(collection, "evict")) == {"the run is over": 3}
    assert_same(vectors_of(tmp_path), reference)


def test_turns_grow_until_moving_is_a_small_part_of_them(run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        steps, "TURN", Turn(first_texts=4, moving_share=1e-6, multiple_of=1)
    )  # so small that only one long turn can have it
    (collection,) = run(mode="sequential", devices="simulated:64MiB").collections
    assert collection.turn_texts == [4, TEXTS - 4]
    assert [lease.model for lease in leases(collection, "release")] == NAMES * 2


def stop_in(model: str, chunks: Path, output: Path, *, after: int = 0, **options: Any) -> int:
    """Run until the model has encoded more texts than that, and give their number."""
    switch, finished, rows = StopSwitch(), [], Counter[str]()

    def watch(event: Event) -> None:
        if isinstance(event, BatchEncoded):
            rows[event.model] += event.rows
            if rows[model] > after:
                switch.stop("the test wants it")
        if isinstance(event, CollectionFinished):
            finished.append(event.status)

    words = {key: value for key, value in OPTIONS.items() if key != "quiet"}
    config = make_config(chunks, output, models=three_models(), collections="c", **words, **options)
    run_pipeline(config, watch, switch)
    assert finished == ["partial"]
    assert 0 < rows[model] < TEXTS
    return rows[model]


@pytest.mark.parametrize("then", ["exclusive", "simultaneous"])
def test_a_run_that_was_stopped_in_its_second_pass_goes_on_there(
    run: MakeRun, chunks: Path, tmp_path: Path, reference: np.ndarray, then: str
) -> None:
    done = stop_in(NAMES[1], chunks, tmp_path, mode="exclusive", devices="simulated:256MiB")
    (collection,) = run(mode=then, devices="simulated:256MiB").collections
    first, second, third = collection.passes
    assert (first.batches, first.stored_texts) == (0, TEXTS)
    assert (second.stored_texts, second.encoded_texts) == (done, TEXTS - done)
    assert (third.stored_texts, third.encoded_texts) == (0, TEXTS)
    assert [lease.model for lease in leases(collection, "acquire")] == NAMES[1:]
    assert_same(vectors_of(tmp_path), reference)


def test_a_run_that_was_stopped_in_its_second_turn_goes_on_there(
    run: MakeRun, chunks: Path, tmp_path: Path, reference: np.ndarray, short_turns: int
) -> None:
    turn = TEXTS // short_turns
    done = stop_in(NAMES[1], chunks, tmp_path, after=turn, mode="sequential", devices="simulated:256MiB")
    (collection,) = run(mode="sequential", devices="simulated:256MiB").collections
    stored = [each.stored_texts for each in collection.passes]
    assert stored == [2 * turn, done, turn]
    assert [each.encoded_texts for each in collection.passes] == [TEXTS - count for count in stored]
    assert_same(vectors_of(tmp_path), reference)


def test_companions_on_the_first_device_wait_when_the_primary_runs_out_of_memory(
    run: MakeRun, tmp_path: Path, reference: np.ndarray, controls: SimulatedControls, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Encoder.forward
    first = iter([True])

    def failing_once(self: Encoder, batch: TokenBatch) -> Any:
        if self.name == NAMES[0] and batch.tokens > 1000 and next(first, False):  # of the texts, no trial
            controls.fail_after(0, 30)
        return forward(self, batch)

    monkeypatch.setattr(Encoder, "forward", failing_once)
    (collection,) = run(mode="simultaneous", devices="simulated:256MiB", companions="share").collections
    paused = [each.details for each in collection.mitigations if each.type == "companion_paused"]
    assert [(each["model"], each["device"]) for each in paused] == [(name, "simulated:0") for name in NAMES[1:]]
    assert mitigations(collection)["oom_pause_companions"] == 1
    assert [each.encoded_texts for each in collection.passes] == [TEXTS] * 3
    assert_same(vectors_of(tmp_path), reference)


def test_without_a_companion_that_may_be_missing_the_others_weigh_more(run: MakeRun, tmp_path: Path) -> None:
    bert, roberta, _ = three_models()
    options: dict[str, Any] = {"models": [f"{bert}=3", f"{roberta}=1", "bge-m3=4"], "devices": "simulated:256MiB"}
    options |= {"offline": True, "cache_dir": tmp_path / "empty"}
    with pytest.raises(MissingModelError, match="bge-m3"):
        run(**options)
    summary = run(**options, allow_missing_companions=True)
    (collection,) = summary.collections
    assert collection.fusion is not None
    assert collection.fusion.weights == {NAMES[0]: 0.75, NAMES[1]: 0.25}
    assert [each.weight for each in collection.models] == [0.75, 0.25]
    assert any("continuing without bge-m3" in message for message in summary.warnings)
    assert [each.model for each in summary.missing_models] == ["bge-m3"]
    shares_of_norm = (vectors_of(tmp_path)[:, :64] ** 2).sum(1)
    assert shares_of_norm == pytest.approx(0.75, abs=1e-5)
