"""The requirement "Structured Run Summary", sentence by sentence, by the V5 script, the command line and Python.

What needs cards is in `simulated/test_spec_records.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from tests.support.ways import WAYS, Ran, Way

TEXTS = [f"text {number}" for number in range(7)]
COMMIT = "1" * 40

Run = Callable[..., Ran]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the collections below `tmp_path` in one of the three ways."""
    monkeypatch.setenv("ULTIMATE_EMBEDDER_DEVICES", "cpu")
    way: Way = request.param

    def start(*flags: str, models: list[str] | None = None) -> Ran:
        chosen = models or [str(tiny_model("bert", hidden=32, layers=1))]
        return way(tmp_path / "chunks", tmp_path / "out", chosen, tmp_path / "wanted" / "here.json", *flags)

    return start


@pytest.fixture
def docs(write_chunks: WriteChunks) -> None:
    write_chunks([*TEXTS, ""])


# Scenario: Successful run summary emission


@pytest.mark.usefixtures("docs")
def test_the_item_has_status_chunk_count_export_paths_and_qdrant_collection(run: Run, tmp_path: Path) -> None:
    ran = run()
    assert (ran.ok, ran.summary["error"]) == (True, None)
    assert ran.docs["status"] == "completed"
    assert (ran.docs["chunks"]["found"], ran.docs["chunks"]["embedded"]) == (len(TEXTS) + 1, len(TEXTS))
    assert {"npy", "parquet", "qdrant"} <= {export["kind"] for export in ran.docs["exports"]}
    assert all((tmp_path / "out") in Path(export["path"]).parents for export in ran.docs["exports"])
    assert all(Path(export["path"]).exists() for export in ran.docs["exports"])
    assert ran.docs["target_qdrant_collection"] == "docs__tiny-bert"


@pytest.mark.usefixtures("docs")
def test_the_overall_summary_file_is_written_to_the_requested_location(run: Run, tmp_path: Path) -> None:
    run()
    assert (tmp_path / "wanted" / "here.json").is_file()


def test_each_collection_processed_or_skipped_is_described(run: Run, write_chunks: WriteChunks) -> None:
    write_chunks(TEXTS, "docs")
    run()
    write_chunks(TEXTS, "new")
    write_chunks([], "nothing")
    write_chunks(["", ""], "useless")
    ran = run("--skip-existing")
    assert {each["collection"]: each["status"] for each in ran.summary["collections"]} == {
        "docs": "skipped_existing",
        "new": "completed",
        "nothing": "skipped_no_chunks",
        "useless": "failed",
    }
    assert (ran.docs["chunks"]["embedded"], ran.docs["target_qdrant_collection"]) == (len(TEXTS), "docs__tiny-bert")
    assert ran.docs["exports"]


def test_the_summary_is_written_in_every_case_also_when_nothing_was_found(run: Run, tmp_path: Path) -> None:
    (tmp_path / "chunks").mkdir()
    ran = run()
    assert not ran.ok
    assert "no chunk files below" in ran.summary["error"]


# Scenario: Mitigation metadata recorded


@pytest.mark.usefixtures("docs")
def test_models_that_come_from_the_cache_are_recorded_with_their_revision(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = tmp_path / "home" / "hub" / "models--BAAI--bge-m3"
    shutil.copytree(tiny_model("xlm-roberta"), repo / "snapshots" / COMMIT)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    (model,) = run(models=["bge-m3"]).docs["models"]
    assert (model["source"], model["revision"]) == ("cache", COMMIT)
    assert Path(model["path"]).resolve() == (repo / "snapshots" / COMMIT).resolve()


def test_residual_warnings_are_recorded_with_the_collection(run: Run, tmp_path: Path) -> None:
    (tmp_path / "chunks" / "docs").mkdir(parents=True)
    (tmp_path / "chunks" / "docs" / "a_chunks.json").write_text('[{"text": "one", "score": NaN}]')
    (warning,) = run().docs["warnings"]
    assert "a_chunks.json record 0, score: NaN or infinity was replaced by null" in warning
