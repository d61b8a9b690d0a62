"""A run that found nothing says what it looked for and what was there instead, and leaves a summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
from ultimate_embedder import embed
from ultimate_embedder.cli import main
from ultimate_embedder.compat.script import main as v5

LOOKED_FOR = "looked for *.json, *.jsonl, *.ndjson, *.csv, *.tsv, *.parquet, *.arrow or *.feather"
MISSING_MODEL = "bge-m3"  # nothing found is told without a model: none is resolved, let alone fetched


@pytest.fixture
def no_chunks(tmp_path: Path) -> Path:
    """A folder of files that are none of ours."""
    (tmp_path / "chunks" / "docs" / "deep").mkdir(parents=True)
    for name in ("a.log", "docs/b.LOG", "docs/deep/c.tif"):
        (tmp_path / "chunks" / name).write_text("x")
    return tmp_path / "chunks"


def read(path: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return summary


def test_python_has_the_error_in_the_summary(no_chunks: Path, tmp_path: Path) -> None:
    summary = embed(no_chunks, tmp_path / "out", models=MISSING_MODEL, quiet=True)
    expected = f"no chunk files below {no_chunks}: {LOOKED_FOR}; found 2 .log, 1 .tif, which are not chunk files"
    assert (summary.ok, summary.error, summary.collections) == (False, expected, [])
    assert read(tmp_path / "out" / "summary.json")["error"] == expected


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--json"]], ids=["table", "dry-run", "json"])
def test_the_command_line_prints_it_and_exits_with_1(
    no_chunks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    code = main(["embed", str(no_chunks), "--output", str(tmp_path / "out"), "--quiet", *more])
    printed = capsys.readouterr().out
    assert code == 1
    assert f"{LOOKED_FOR}; found 2 .log, 1 .tif, which are not chunk files" in printed
    if not more:
        assert len(printed.splitlines()) == 2


def test_the_v5_script_writes_it_and_exits_with_1(
    no_chunks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = v5(["--chunks-root", str(no_chunks), "--output-root", str(tmp_path / "out"), "--model", MISSING_MODEL])
    assert code == 1
    summary = read(tmp_path / "out" / "embedding_summary.json")
    assert summary["error"].startswith(f"no chunk files below {no_chunks}: {LOOKED_FOR}; found 2 .log, 1 .tif")
    assert summary["collections"] == []
    assert read(tmp_path / "out" / "summary.json")["error"] == summary["error"]
    assert summary["error"] in capsys.readouterr().out


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert v5(["--chunks-root", str(tmp_path / "empty"), "--output-root", str(tmp_path / "out")]) == 1
    expected = f"no chunk files below {tmp_path / 'empty'}: {LOOKED_FOR}; found no files"
    assert read(tmp_path / "out" / "embedding_summary.json")["error"] == expected


def test_collections_that_match_nothing_are_told_with_those_that_are_there(
    write_chunks: WriteChunks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_chunks(["one"], "code")
    chunks = write_chunks(["one"], "docs")
    expected = f"none of the collections that were asked for is below {chunks}: dosc, cod. There are: code, docs"
    summary = embed(chunks, tmp_path / "out", models=MISSING_MODEL, collections=["dosc", "cod"], quiet=True)
    assert (summary.ok, summary.error) == (False, expected)
    assert [each.status for each in summary.collections] == ["skipped_missing", "skipped_missing"]
    command = ["embed", str(chunks), "--output", str(tmp_path / "out"), "--collections", "dosc,cod", "--quiet"]
    assert main(command) == 1
    assert expected in capsys.readouterr().out
    roots = ["--chunks-root", str(chunks), "--output-root", str(tmp_path / "out2")]
    assert v5([*roots, "--model", MISSING_MODEL, "--collections", "dosc", "cod"]) == 1
    assert read(tmp_path / "out2" / "embedding_summary.json")["error"] == expected


def test_a_collection_that_was_asked_for_and_has_other_files_is_described(
    write_chunks: WriteChunks, tmp_path: Path
) -> None:
    chunks = write_chunks(["one"], "docs")
    (chunks / "notes").mkdir()
    (chunks / "notes" / "a.md").write_text("x")
    summary = embed(chunks, tmp_path / "out", collections="notes", quiet=True)
    assert summary.error is not None
    assert "There are: docs." in summary.error
    found = f"{chunks / 'notes'} has no chunk files: {LOOKED_FOR}; found 1 .md, which are not chunk files"
    assert f"{found}. Split documents into chunks first" in summary.error


def test_the_last_event_has_the_error(no_chunks: Path, tmp_path: Path) -> None:
    embed(no_chunks, tmp_path / "out", quiet=True)
    last = json.loads((tmp_path / "out" / "events.jsonl").read_text("utf-8").splitlines()[-1])
    assert last["event"] == "RunFinished"
    assert "found 2 .log, 1 .tif" in last["error"]
