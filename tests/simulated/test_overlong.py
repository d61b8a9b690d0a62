"""Long texts on simulated devices get the vectors of the CPU, pooled or split, whatever happens to the devices."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.config import OVERLONG, Overlong
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.events import BatchEncoded, Event
from ultimate_embedder.options import make_config
from ultimate_embedder.pipeline import run
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.summary import CollectionSummary

MiB = 1 << 20
OPTIONS: dict[str, Any] = {"precision": "fp32", "exports": "npy", "quiet": True, "max_tokens": 256}


def model() -> str:
    return str(tiny_model("bert", hidden=128, layers=3))


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some short texts, some long ones, and one of a hundred segments."""
    rng = random.Random(0)
    texts = [f"{number:03} " + "some words " * rng.choice((2, 5, 60, 90)) for number in range(40)]
    folder = tmp_path_factory.mktemp("chunks") / "c"
    folder.mkdir()
    (folder / "t_chunks.json").write_text(json.dumps([*texts, "a very long text. " * 1200]))
    return folder.parent


@pytest.fixture(scope="module")
def references(chunks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The vectors of the CPU."""
    found: dict[str, np.ndarray] = {}
    for how in OVERLONG[1:]:
        output = tmp_path_factory.mktemp(how)
        embed(chunks, output, models=model(), devices="cpu", overlong=how, **OPTIONS)
        found[how] = vectors_of(output)
    return found


@pytest.fixture(autouse=True)
def controls() -> Iterator[SimulatedControls]:
    """The devices' knobs; after every test the devices are empty."""
    controls = simulate([MiB, MiB])
    yield controls
    controls.resize([MiB, MiB])
    gc.collect()
    assert [controls.usage(device)["allocated"] for device in range(2)] == [0, 0]


def vectors_of(output: Path) -> np.ndarray:
    return np.asarray(np.load(output / "c" / "embeddings.npy"))


def only(collections: list[CollectionSummary]) -> CollectionSummary:
    (collection,) = collections
    assert collection.status == "completed", collection.error
    return collection


@pytest.mark.parametrize("how", OVERLONG[1:])
@pytest.mark.parametrize("devices", ["simulated:2x256MiB", "simulated:12MiB"])
def test_a_device_of_any_size_gives_the_vectors_of_the_cpu(
    chunks: Path, references: dict[str, np.ndarray], tmp_path: Path, how: Overlong, devices: str
) -> None:
    collection = only(embed(chunks, tmp_path, models=model(), devices=devices, overlong=how, **OPTIONS).collections)
    assert np.abs(vectors_of(tmp_path) - references[how]).max() < 1e-5
    assert collection.chunks.truncated == 0
    assert bool(collection.passes[0].reduced_batches or collection.mitigations) is (devices == "simulated:12MiB")


def test_a_run_that_is_stopped_between_segments_goes_on_and_gives_the_same_vectors(
    chunks: Path, references: dict[str, np.ndarray], tmp_path: Path
) -> None:
    options = {**OPTIONS, "models": model(), "devices": "simulated:2x256MiB", "overlong": "pool", "batch_rows": 8}
    stop = StopSwitch()
    encoded: list[BatchEncoded] = []

    def watch(event: Event) -> None:
        if isinstance(event, BatchEncoded):
            encoded.append(event)
            if len(encoded) == 4:
                stop.stop("the test says so")

    run(make_config(chunks, tmp_path, **options), watch, stop)
    done = sum(event.texts for event in encoded)
    assert done < sum(event.rows for event in encoded)  # segments of texts that were not complete
    collection = only(embed(chunks, tmp_path, **options).collections)
    assert collection.passes[0].stored_texts == done
    assert np.abs(vectors_of(tmp_path) - references["pool"]).max() < 1e-5


def test_the_other_device_encodes_the_segments_of_one_that_dies(
    chunks: Path, references: dict[str, np.ndarray], tmp_path: Path, controls: SimulatedControls
) -> None:
    options = {**OPTIONS, "models": model(), "devices": "simulated:2x256MiB", "overlong": "pool", "batch_rows": 8}
    encoded: list[Event] = []

    def watch(event: Event) -> None:
        if isinstance(event, BatchEncoded):
            encoded.append(event)
            if len(encoded) == 2:
                controls.die_after(0, 0, "CUDA error: an illegal memory access was encountered")

    run(make_config(chunks, tmp_path, **options), watch, StopSwitch())
    assert np.abs(vectors_of(tmp_path) - references["pool"]).max() < 1e-5
