"""`models manifest OUT`: the models of an output, with every file and its checksum, wherever they are."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.cli import main

HUB_ID, KEY, COMMIT = "BAAI/bge-m3", "bge-m3", "0" * 40


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ULTIMATE_EMBEDDER_DEVICES", "cpu")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)


@pytest.fixture
def chunks(write_chunks: WriteChunks) -> Path:
    return write_chunks(["one", "two"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that may be changed."""
    return Path(shutil.copytree(tiny_model("bert", hidden=32, layers=1), tmp_path / "my-model"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache that another program filled: large files are links to blobs, and there is no list of files."""
    repo = tmp_path / "cache" / "models--BAAI--bge-m3"
    snapshot = repo / "snapshots" / COMMIT
    shutil.copytree(tiny_model("xlm-roberta"), snapshot)
    weights = snapshot / "model.safetensors"
    blob = repo / "blobs" / sha256(weights)
    blob.parent.mkdir()
    weights.rename(blob)
    weights.symlink_to(blob)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    return tmp_path / "cache"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(chunks: Path, out: Path, model: object, **options: Any) -> None:
    assert embed(chunks, out, models=str(model), exports="npy", quiet=True, **options).ok


def manifest(capsys: pytest.CaptureFixture[str], out: Path, *options: object) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["models", "manifest", str(out), *map(str, options)]) == 0
    entries: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return entries


def files_below(folder: Path) -> list[dict[str, Any]]:
    return [
        {"name": path.relative_to(folder).as_posix(), "size_bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def test_a_model_in_a_folder_is_listed_with_its_files(
    chunks: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(chunks, tmp_path / "out", folder)
    (entry,) = manifest(capsys, tmp_path / "out")
    assert (entry["model"], entry["hub_id"], entry["note"]) == ("my-model", None, "")
    assert entry["files"] == files_below(folder)
    assert entry["size_bytes"] == sum(file["size_bytes"] for file in entry["files"])


def test_a_model_in_a_package_is_listed_with_its_files(
    chunks: Path, tmp_path: Path, minilm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(chunks, tmp_path / "out", "all-minilm-l6-v2")
    (entry,) = manifest(capsys, tmp_path / "out")
    assert (entry["model"], entry["note"]) == ("all-minilm-l6-v2", "")
    assert entry["files"] == files_below(minilm)


def test_a_model_in_a_cache_that_another_program_filled_is_listed_with_its_files(
    chunks: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(chunks, tmp_path / "out", KEY, offline=True, cache_dir=cache)
    snapshot = cache / "models--BAAI--bge-m3" / "snapshots" / COMMIT
    (entry,) = manifest(capsys, tmp_path / "out", "--cache-dir", cache)
    assert (entry["hub_id"], entry["revision"], entry["note"]) == (HUB_ID, COMMIT, "")
    assert entry["files"] == files_below(snapshot)


def test_a_model_is_found_in_another_cache_than_that_of_the_run(
    chunks: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(chunks, tmp_path / "out", KEY, offline=True, cache_dir=cache)
    shutil.copytree(cache, tmp_path / "elsewhere", symlinks=False)
    shutil.rmtree(cache)
    (entry,) = manifest(capsys, tmp_path / "out", "--cache-dir", tmp_path / "elsewhere")
    assert (entry["note"], "model.safetensors" in [file["name"] for file in entry["files"]]) == ("", True)


def test_a_model_that_is_not_on_this_machine_is_said_to_be_missing(
    chunks: Path, cache: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(chunks, tmp_path / "a", KEY, offline=True, cache_dir=cache)
    run(chunks, tmp_path / "b", folder)
    shutil.rmtree(cache)
    shutil.rmtree(folder)
    (of_hub,) = manifest(capsys, tmp_path / "a", "--cache-dir", cache)
    assert of_hub["files"] == []
    assert of_hub["note"] == f"not on this machine. Fetch {HUB_ID} at {COMMIT}."
    (of_folder,) = manifest(capsys, tmp_path / "b")
    assert (of_folder["files"], of_folder["note"]) == ([], f"not on this machine. It was in {folder}.")


def test_a_model_whose_files_have_changed_is_said_to_differ(
    chunks: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(chunks, tmp_path / "out", folder)
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    (entry,) = manifest(capsys, tmp_path / "out")
    assert entry["files"] == []
    assert entry["note"] == f"its files here are not those that made the vectors: {folder}"


def test_a_path_of_another_machine_that_holds_no_model_is_not_read(
    chunks: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(chunks, tmp_path / "out", folder)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    summary["collections"][0]["models"][0]["path"] = "/"
    (tmp_path / "out" / "summary.json").write_text(json.dumps(summary))
    (entry,) = manifest(capsys, tmp_path / "out")
    assert (entry["files"], entry["note"]) == ([], "not on this machine. It was in /.")


def test_the_models_of_a_skipped_collection_are_known_from_its_store(
    chunks: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(chunks, tmp_path / "out", folder)
    (before,) = manifest(capsys, tmp_path / "out")
    run(chunks, tmp_path / "out", folder, skip_existing=True)
    (entry,) = manifest(capsys, tmp_path / "out")
    for name in ("model", "hub_id", "revision", "digest", "size_bytes", "files", "note"):
        assert entry[name] == before[name]


def test_each_model_of_an_ensemble_is_listed_once(
    write_chunks: WriteChunks, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_chunks(["one"], "code")
    chunks = write_chunks(["one"], "docs")
    run(chunks, tmp_path / "out", f"{folder},{tiny_model('mpnet', hidden=32, layers=1)}")
    entries = manifest(capsys, tmp_path / "out")
    assert [entry["model"] for entry in entries] == ["my-model", "tiny-mpnet"]
    assert all(entry["files"] for entry in entries)
