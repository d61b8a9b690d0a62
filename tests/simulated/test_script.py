"""The V5 command line on simulated devices: what is said for one collection holds for that one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
from tests.support.all_devices import make_all_work
from tests.support.tiny_models import tiny_model
from ultimate_embedder.compat.script import main


@pytest.fixture
def collections(write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the summary says after a run in which one collection is kept off the cards and out of the ensemble."""
    write_chunks(["def f(): pass"], "code")
    chunks = write_chunks(["one", "two"], "docs")
    monkeypatch.setenv("ULTIMATE_EMBEDDER_DEVICES", "simulated:2x15GiB")
    models = [str(tiny_model(architecture, hidden=32, layers=1)) for architecture in ("bert", "mpnet")]
    roots = ["--chunks-root", str(chunks), "--output-root", str(tmp_path / "out"), "--model", models[0]]
    ensemble = ["--exclusive-ensemble", "--ensemble-models", ",".join(models)]
    assert main([*roots, *ensemble, "--force-cpu", "code", "--no-ensemble", "code"]) == 0
    summary = json.loads((tmp_path / "out" / "embedding_summary.json").read_text())
    return {each["collection"]: each for each in summary["collections"]}


def test_a_collection_can_be_kept_off_the_cards(collections: dict[str, Any]) -> None:
    assert [each["devices"] for each in collections["code"]["passes"]] == [["cpu"]]
    assert [each["devices"] for each in collections["docs"]["leases"]] == [["simulated:0", "simulated:1"]] * 4


def test_a_collection_can_be_kept_out_of_the_ensemble(collections: dict[str, Any]) -> None:
    models = {name: [each["model"] for each in collection["passes"]] for name, collection in collections.items()}
    assert models == {"code": ["tiny-bert"], "docs": ["tiny-bert", "tiny-mpnet"]}


def run_ensemble(chunks: Path, output: Path, *options: str) -> dict[str, Any]:
    """Embed in sequential mode; gives the collections of the summary, by name."""
    models = [str(tiny_model(architecture, hidden=32, layers=1)) for architecture in ("bert", "mpnet")]
    roots = ["--chunks-root", str(chunks), "--output-root", str(output), "--model", models[0]]
    ensemble = ["--enable-ensemble", "--ensemble-models", ",".join(models), "--ensemble-mode", "sequential"]
    assert main([*roots, *ensemble, *options]) == 0
    summary = json.loads((output / "embedding_summary.json").read_text())
    return {each["collection"]: each for each in summary["collections"]}


@pytest.fixture
def chunks(write_chunks: WriteChunks, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two collections that are large enough for two devices."""
    monkeypatch.setenv("ULTIMATE_EMBEDDER_DEVICES", "simulated:2x15GiB")
    write_chunks([f"another text {number}" for number in range(256)], "alone")
    return write_chunks([f"text number {number}" for number in range(256)], "docs")


@pytest.mark.parametrize("collection", ["docs", "alone"])
def test_models_that_take_turns_use_both_devices(
    chunks: Path, tmp_path: Path, collection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Specified: "SHOULD wrap the active model with data parallelism when multiple Kaggle GPUs are present"."""
    make_all_work(2, monkeypatch)
    (found,) = run_ensemble(chunks, tmp_path / "out", "--no-ensemble", "alone", "--collections", collection).values()
    assert len(found["passes"]) == (1 if collection == "alone" else 2)
    for each in found["passes"]:
        assert each["devices"] == ["simulated:0", "simulated:1"]
        assert set(each["tokens_by_device"]) == {"simulated:0", "simulated:1"}


def test_the_devices_that_are_reported_are_those_that_worked(chunks: Path, tmp_path: Path) -> None:
    """Specified: "MUST emit telemetry describing the pass duration, device, and aggregation weight applied"."""
    found = run_ensemble(chunks, tmp_path / "out", "--no-sequential-data-parallel", "--collections", "docs")
    (docs,) = found.values()
    assert [each["devices"] for each in docs["passes"]] == [["simulated:0"]] * 2
    completed = [each for each in docs["telemetry"]["mitigation_events"] if each["type"] == "ensemble_pass_completed"]
    assert [each["device"] for each in completed] == ["simulated:0"] * 2
