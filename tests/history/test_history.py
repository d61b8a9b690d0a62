"""The history of runs: bounded, checked, shared by several processes, and of no importance to a run."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.config import HISTORY_VARIABLE, history_path
from ultimate_embedder.history import History, PassRecord, StageRecord, add_to_history, read_history
from ultimate_embedder.history.file import KEPT_OF_A_KIND, MOST_PASSES
from ultimate_embedder.machine import processor_name, usable_cores

TEXTS = [f"text number {number} " * (number % 9 + 1) for number in range(40)]


def record(number: int = 0, model: str = "m") -> PassRecord:
    return PassRecord(model, "h", "float32", "torch", 2, 1.0 + number, 10, 100, {64: (128, 0.5)}, at=float(number))


def add(path: Path, number: int) -> None:
    add_to_history(path, [record(number, model=f"m{number}")])


def test_what_is_added_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "history.json"
    stage = StageRecord("start", "h", 1, 0.5, at=3.0)
    add_to_history(path, [record()], [stage])
    add_to_history(path, [record(1)])
    assert read_history(path) == History((record(), record(1)), (stage,))
    assert read_history(tmp_path / "none.json") == read_history(None) == History()


def test_it_is_bounded_and_forgets_the_oldest(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    add_to_history(path, [record(number) for number in range(20)])
    assert [each.at for each in read_history(path).passes] == list(range(20 - KEPT_OF_A_KIND, 20))
    add_to_history(path, [record(number, model=f"m{number}") for number in range(2 * MOST_PASSES)])
    found = read_history(path).passes
    assert len(found) == MOST_PASSES
    assert found[-1].model == f"m{2 * MOST_PASSES - 1}"


def _damaged() -> dict[str, bytes]:
    entry = {"history_version": 1, "passes": [], "stages": []}
    return {
        "empty": b"",
        "binary": bytes(range(256)),
        "no checksum": json.dumps(entry).encode(),
        "wrong checksum": json.dumps({**entry, "checksum": "0" * 64}).encode(),
        "a list": b"[]",
        "deep": b"[" * 100_000,
    }


@pytest.mark.parametrize("kind", _damaged())
def test_a_damaged_one_is_ignored_with_a_note_and_put_aside(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_bytes(_damaged()[kind])
    (note,) = read_history(path).notes
    assert str(path) in note
    assert "ignored" in note
    add_to_history(path, [record()])
    assert read_history(path) == History((record(),))
    assert (tmp_path / "history.json.damaged").read_bytes() == _damaged()[kind]


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 0},
        {"seconds": float("nan")},
        {"seconds": 1e300},
        {"workers": 0},
        {"workers": 10**30},
        {"model": "x" * 5000},
        {"model": 7},
        {"by_length": [{"length": 64, "padded_tokens": -1, "seconds": 1}]},
        {"by_length": [{"length": 10**12, "padded_tokens": 1, "seconds": 1}]},
    ],
)
def test_values_that_cannot_be_are_not_used(change: dict[str, Any], tmp_path: Path) -> None:
    from ultimate_embedder.history.file import _pass_fields
    from ultimate_embedder.state import sealed

    path = tmp_path / "history.json"
    values = {"history_version": 1, "passes": [{**_pass_fields(record()), **change}], "stages": []}
    path.write_text(json.dumps(sealed(values)))
    assert len(read_history(path).notes) == 1


def test_a_history_of_a_newer_version_is_not_used(tmp_path: Path) -> None:
    from ultimate_embedder.state import sealed

    path = tmp_path / "history.json"
    path.write_text(json.dumps(sealed({"history_version": 2, "passes": "anything"})))
    assert "version 2" in read_history(path).notes[0]


def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=add, args=(path, number)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(each.model for each in read_history(path).passes) == [f"m{number}" for number in range(8)]


def test_a_folder_or_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "kept").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        add_to_history(folder, [record()])
    assert (folder / "kept").is_dir()
    target = tmp_path / "target.json"
    target.write_text("mine")
    (tmp_path / "link.json").symlink_to(target)
    add_to_history(tmp_path / "link.json", [record()])
    assert target.read_text() == "mine"


def test_the_variable_moves_it_or_switches_it_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(HISTORY_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert history_path() == tmp_path / "ultimate-embedder" / "history.json"
    monkeypatch.setenv(HISTORY_VARIABLE, str(tmp_path / "mine.json"))
    assert history_path() == tmp_path / "mine.json"
    for word in ("off", "0", "", "None"):
        monkeypatch.setenv(HISTORY_VARIABLE, word)
        assert history_path() is None


def test_a_run_notes_its_passes_and_stages(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.json"
    monkeypatch.setenv(HISTORY_VARIABLE, str(path))
    chunks, model = write_chunks(TEXTS), tiny_model("bert", hidden=32, layers=2)
    summary = embed(chunks, tmp_path / "out", models=[str(model)], devices="cpu", exports="npy", quiet=True)
    found, (done,) = read_history(path), summary.collections[0].passes
    (noted,) = found.passes
    assert noted.model.startswith("tiny-bert@")
    assert (noted.hardware, noted.workers, noted.dtype) == (processor_name(), min(usable_cores(), 32), "float32")
    assert (noted.texts, noted.tokens, noted.seconds) == (done.encoded_texts, done.tokens, done.seconds)
    assert sum(tokens for tokens, _ in noted.by_length.values()) == done.padded_tokens
    assert {each.stage for each in found.stages} >= {"start", "load chunks", "export npy"}
    content = path.read_text("utf-8")
    assert "text number" not in content
    assert str(tmp_path) not in content
    embed(chunks, tmp_path / "out", models=[str(model)], devices="cpu", exports="npy", quiet=True)
    assert read_history(path).passes == found.passes  # nothing was encoded: nothing to note


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_to_is_no_problem(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setenv(HISTORY_VARIABLE, str(cache / "history.json"))
    model = tiny_model("bert", hidden=32, layers=2)
    assert embed(write_chunks(TEXTS), tmp_path / "out", models=[str(model)], exports="none", quiet=True).ok


def test_a_place_that_is_a_folder_is_no_problem_for_a_run(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HISTORY_VARIABLE, str(tmp_path))
    model = tiny_model("bert", hidden=32, layers=2)
    summary = embed(write_chunks(TEXTS), tmp_path / "out", models=[str(model)], exports="none", quiet=True)
    assert summary.ok
    assert summary.warnings == []
