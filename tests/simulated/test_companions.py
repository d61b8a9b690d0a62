"""Where companions work, what is recorded of it, and how large batches may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.errors import UsageError
from ultimate_embedder.summary import CollectionSummary

TEXTS = 40


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chunks") / "c"
    folder.mkdir()
    (folder / "t_chunks.json").write_text(json.dumps([f"{number} " + "word " * 20 for number in range(TEXTS)]))
    return folder.parent


@pytest.fixture(scope="module")
def models() -> list[str]:
    return [str(tiny_model("bert", hidden=64, layers=2)), str(tiny_model("qwen2", hidden=96, layers=4))]


def run(chunks: Path, output: Path, models: list[str], **options: Any) -> CollectionSummary:
    (collection,) = embed(chunks, output, models=models, exports="npy", quiet=True, **options).collections
    assert collection.status == "completed", collection.error
    return collection


def placements(collection: CollectionSummary) -> list[tuple[str, str]]:
    kinds = ("companion_gpu_routed", "companion_cpu_fallback")
    return [(each.type, each.details["after"]) for each in collection.mitigations if each.type in kinds]


def test_a_companion_uses_gpu_1(chunks: Path, tmp_path: Path, models: list[str]) -> None:
    """Scenario "Companion model uses GPU 1": "it loads those models onto GPU 1"."""
    collection = run(chunks, tmp_path, models, mode="simultaneous", devices="simulated:2x1GiB")
    assert [each.devices for each in collection.passes] == [["simulated:0"], ["simulated:1"]]
    assert placements(collection) == [("companion_gpu_routed", "simulated:1")]


@pytest.mark.parametrize(
    ("devices", "reason"), [("simulated:1GiB+1MiB", "no other GPU has"), ("simulated:1GiB", "there is no second GPU")]
)
def test_a_companion_falls_back_to_the_cpu_where_no_second_gpu_has_room(
    chunks: Path, tmp_path: Path, models: list[str], devices: str, reason: str
) -> None:
    """Scenario "Companion model CPU fallback": "it places the companion models on CPU"."""
    collection = run(chunks, tmp_path, models, mode="simultaneous", devices=devices)
    assert [each.devices for each in collection.passes] == [["simulated:0"], ["cpu"]]
    assert placements(collection) == [("companion_cpu_fallback", "cpu")]
    (fallback,) = [each for each in collection.mitigations if each.type == "companion_cpu_fallback"]
    assert reason in fallback.details["reason"]
    assert collection.passes[1].dtype == "float32"


def test_sharing_the_first_gpu_is_a_choice_and_is_recorded(chunks: Path, tmp_path: Path, models: list[str]) -> None:
    options = {"mode": "simultaneous", "devices": "simulated:1GiB", "companions": "share"}
    collection = run(chunks, tmp_path, models, **options)
    assert [each.devices for each in collection.passes] == [["simulated:0"], ["simulated:0"]]
    assert placements(collection) == [("companion_gpu_routed", "simulated:0")]


def test_auto_says_which_mode_it_took_and_why(chunks: Path, tmp_path: Path, models: list[str]) -> None:
    alone = run(chunks, tmp_path / "a", models, devices="simulated:1GiB")
    assert (alone.mode, "--companions share allows it" in alone.mode_reason) == ("exclusive", True)
    shared = run(chunks, tmp_path / "b", models, devices="simulated:1GiB", companions="share")
    assert (shared.mode, "companions share the primary's" in shared.mode_reason) == ("simultaneous", True)


def test_companions_that_are_released_give_the_same_vectors(chunks: Path, tmp_path: Path, models: list[str]) -> None:
    """Task 2.3: companions "release their allocations between batches"."""
    options: dict[str, Any] = {"mode": "simultaneous", "devices": "simulated:2x1GiB", "fusion": "concat"}
    run(chunks, tmp_path / "kept", models, **options)
    released = run(chunks, tmp_path / "released", models, release_companions=True, **options)
    one, other = (np.load(tmp_path / name / "c" / "embeddings.npy") for name in ("kept", "released"))
    assert np.array_equal(one, other)
    assert "weights_back" not in {each.type for each in released.mitigations}


def test_batches_are_at_most_as_large_as_asked_for_per_model(chunks: Path, tmp_path: Path, models: list[str]) -> None:
    """ "enabling per-model tuning of batch hints": asked for, and used, are both recorded."""
    names = [Path(model).name for model in models]
    hints = f"{names[0]}=512,{names[1]}=2048"
    collection = run(chunks, tmp_path, models, devices="simulated:1GiB", batch_tokens=hints)
    assert [each.batch_tokens for each in collection.passes] == [512, 2048]
    for each, most in zip(collection.passes, (512, 2048), strict=True):
        assert most / 2 < each.largest_batch_tokens <= most


def test_batches_have_at_most_as_many_rows_as_asked_for(chunks: Path, tmp_path: Path, models: list[str]) -> None:
    collection = run(chunks, tmp_path, models[:1], devices="simulated:1GiB", batch_rows=7)
    assert (collection.passes[0].batch_rows_limit, collection.passes[0].largest_batch_rows) == (7, 7)


def test_a_hint_for_a_model_that_is_not_used_is_refused(chunks: Path, tmp_path: Path, models: list[str]) -> None:
    with pytest.raises(UsageError, match="--batch-tokens bge-m3=512: the models are tiny-bert"):
        run(chunks, tmp_path, models[:1], devices="simulated:1GiB", batch_tokens="bge-m3=512")


def test_nn_data_parallel_says_that_its_numbers_differ(chunks: Path, tmp_path: Path, models: list[str]) -> None:
    options: dict[str, Any] = {"devices": "simulated:2x1GiB", "parallelism": "data-parallel"}
    summary = embed(chunks, tmp_path, models=models[:1], exports="npy", quiet=True, **options)
    assert any("nn.DataParallel" in warning for warning in summary.warnings)
