"""`status`, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.cli import main
from ultimate_embedder.output import Output


@pytest.fixture
def output(write_chunks: WriteChunks, tmp_path: Path) -> Path:
    chunks = write_chunks([f"text {n}" for n in range(30)], "c")
    embed(chunks, tmp_path / "out", models=str(tiny_model("bert")), devices="cpu", quiet=True)
    return tmp_path / "out"


def status_lines(output: Path, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    capsys.readouterr()
    assert main(["status", str(output)]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()[1:]]


def stop_early(output: Path, *companions: str, no_ensemble: tuple[str, ...] = ()) -> None:
    """Make the summary that of a run with more models that did not get through."""
    path = output / "summary.json"
    summary = json.loads(path.read_text())
    summary["collections"][0]["status"] = "partial"
    summary["options"]["models"] += [{"name": name, "weight": 1.0} for name in companions]
    summary["options"]["no_ensemble"] = no_ensemble
    path.write_text(json.dumps(summary))


def test_status_tells_what_is_there_and_what_is_next(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(output)]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[:5] == ["collection", "model", "dtype", "vectors", "missing"]
    assert line.split()[:6] == ["c", "tiny-bert", "float32", "30", "0", "1"]
    assert line.endswith("nothing")


def test_status_knows_the_models_that_have_nothing_yet(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop_early(output, "bge-m3", "BAAI/bge-small-en-v1.5")
    *_, known, by_hub_id = status_lines(output, capsys)
    assert known == ["c", "bge-m3", "-", "0", "30", "0", "0.0", "encode", "30", "texts"]
    assert by_hub_id[:2] == ["c", "bge-small-en-v1.5"]


def test_status_lists_no_companion_of_a_collection_that_is_for_the_first_model_only(
    output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_early(output, "bge-m3", no_ensemble=("c",))
    assert [line[:2] for line in status_lines(output, capsys)] == [["c", "tiny-bert"]]


def test_status_does_not_guess_what_a_killed_run_left(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (output / "summary.json").unlink()
    (line,) = status_lines(output, capsys)
    assert line[4] == "?"


def test_status_reads_the_summary_of_the_v5_script(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (output / "summary.json").rename(Output(output).v5_summary_path)
    assert [line[:6] for line in status_lines(output, capsys)] == [["c", "tiny-bert", "float32", "30", "0", "1"]]


def test_a_folder_that_is_no_output_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path)]) == 2
    assert "is not an output of ultimate-embedder" in capsys.readouterr().err
