"""The V5 command line on simulated devices: what is said for one collection holds for that one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
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
    assert [each["devices"] for each in collections["docs"]["passes"]] == [["simulated:0", "simulated:1"]] * 2


def test_a_collection_can_be_kept_out_of_the_ensemble(collections: dict[str, Any]) -> None:
    models = {name: [each["model"] for each in collection["passes"]] for name, collection in collections.items()}
    assert models == {"code": ["tiny-bert"], "docs": ["tiny-bert", "tiny-mpnet"]}
