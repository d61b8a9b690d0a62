"""The same vectors from every mode and every run, at default precision: batches depend on the texts alone."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import tiny_model
from ultimate_embedder import RunSummary, embed

TEXTS = 4300  # more than one window
MODES = ("exclusive", "sequential", "simultaneous")


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(0)
    folder = tmp_path_factory.mktemp("chunks") / "c"
    folder.mkdir()
    texts = [f"{number:04} " + "word " * rng.choice([1, 2, 3, 5, 8]) for number in range(TEXTS)]
    (folder / "t_chunks.json").write_text(json.dumps(texts))
    return folder.parent


@pytest.fixture(scope="module")
def few_chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few") / "c"
    folder.mkdir()
    (folder / "t_chunks.json").write_text(json.dumps([f"{number} " + "word " * 30 for number in range(80)]))
    return folder.parent


@pytest.fixture(scope="module")
def models() -> list[str]:
    return [str(tiny_model("bert", hidden=32, layers=1)), str(tiny_model("qwen2", hidden=48, layers=1))]


def run(chunks: Path, output: Path, models: list[str], **options: Any) -> tuple[RunSummary, np.ndarray]:
    summary = embed(chunks, output, models=models, fusion="concat", exports="npy", quiet=True, **options)
    return summary, np.load(output / "c" / "embeddings.npy")


@pytest.fixture(scope="module")
def exclusive(
    chunks: Path, models: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunSummary, np.ndarray]:
    return run(chunks, tmp_path_factory.mktemp("out"), models, mode="exclusive", devices="simulated:2x1GiB")


def test_two_runs_on_equal_devices_give_bit_identical_vectors(
    chunks: Path, tmp_path: Path, models: list[str], exclusive: tuple[RunSummary, np.ndarray]
) -> None:
    _, again = run(chunks, tmp_path, models, mode="exclusive", devices="simulated:2x1GiB")
    assert np.array_equal(again, exclusive[1])


def test_all_modes_agree_in_half_precision(
    chunks: Path, tmp_path: Path, models: list[str], exclusive: tuple[RunSummary, np.ndarray]
) -> None:
    """Validation plan, 5: "Max absolute difference should be < 1e-5"; with the defaults, so in fp16."""
    others = [run(chunks, tmp_path / mode, models, mode=mode, devices="simulated:2x1GiB") for mode in MODES[1:]]
    for summary, vectors in (exclusive, *others):
        assert [each.dtype for each in summary.collections[0].passes] == ["float16", "float16"]
        assert [each.reduced_batches for each in summary.collections[0].passes] == [0, 0]
        assert np.abs(vectors - exclusive[1]).max() < 1e-5


def test_one_device_gives_the_vectors_of_two(
    chunks: Path, tmp_path: Path, models: list[str], exclusive: tuple[RunSummary, np.ndarray]
) -> None:
    _, one = run(chunks, tmp_path, models, mode="exclusive", devices="simulated:1x1GiB")
    assert np.array_equal(one, exclusive[1])


def test_vectors_have_length_one_in_fp32_where_the_model_normalises(
    few_chunks: Path, tmp_path: Path, minilm: Path
) -> None:
    _, vectors = run(few_chunks, tmp_path, [str(minilm)], devices="simulated:1GiB", max_tokens=16, collections="c")
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-6


def test_where_memory_makes_batches_smaller_that_is_recorded(
    few_chunks: Path, tmp_path: Path, models: list[str]
) -> None:
    summary, small = run(few_chunks, tmp_path / "small", models[:1], devices="simulated:4MiB")
    (each,) = summary.collections[0].passes
    assert each.reduced_batches > 0
    assert any(found.type.startswith("adaptive_batch_reduce") for found in summary.collections[0].mitigations)
    _, roomy = run(few_chunks, tmp_path / "roomy", models[:1], devices="simulated:1GiB")
    assert np.abs(small - roomy).max() < 1e-3


def test_no_mitigation_is_recorded_where_nothing_was_changed(
    few_chunks: Path, tmp_path: Path, models: list[str]
) -> None:
    for mode in MODES[:2]:
        summary, _ = run(few_chunks, tmp_path / mode, models, mode=mode, devices="simulated:2x15GiB")
        assert summary.collections[0].mitigations == []


def test_what_ran_on_the_cpu_is_not_said_to_have_run_on_the_gpu(few_chunks: Path, tmp_path: Path) -> None:
    """A device so small that nothing fits: batches go to the CPU, and the summary and a warning say so."""
    large = str(tiny_model("bert", hidden=256, layers=4))
    summary, _ = run(few_chunks, tmp_path, [large], devices="simulated:2MiB")
    (collection,) = summary.collections
    (each,) = collection.passes
    assert collection.status == "completed"
    assert each.tokens_by_device == {"cpu": each.tokens}
    assert (each.devices, each.dtype) == (["cpu"], "float32")
    assert any("on the CPU" in warning for warning in collection.warnings)
