"""`status` and `verify`, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.cli import main


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "chunks" / "c").mkdir(parents=True)
    (tmp_path / "chunks" / "c" / "t_chunks.json").write_text(json.dumps([f"text {n}" for n in range(30)]))
    embed(tmp_path / "chunks", tmp_path / "out", models=str(tiny_model("bert")), devices="cpu", quiet=True)
    return tmp_path / "out"


def test_status_tells_what_is_there_and_what_is_next(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(output)]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[:5] == ["collection", "model", "dtype", "vectors", "missing"]
    assert line.split()[:6] == ["c", "tiny-bert", "float32", "30", "0", "1"]
    assert line.endswith("nothing")


def test_status_knows_the_models_that_have_nothing_yet(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = output / "summary.json"
    summary = json.loads(path.read_text())
    summary["collections"][0]["status"] = "partial"
    summary["options"]["models"].append({"name": "bge-m3", "weight": 1.0})
    path.write_text(json.dumps(summary))
    assert main(["status", str(output)]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert line.split() == ["c", "bge-m3", "-", "0", "30", "0", "0.0", "encode", "30", "texts"]


def test_status_does_not_guess_what_a_killed_run_left(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (output / "summary.json").unlink()
    assert main(["status", str(output)]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert line.split()[4] == "?"


def test_a_good_output_verifies(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(output)]) == 0
    looked_at = "looked at 1 shards, 3 exports and 20 vectors, computed again"
    assert capsys.readouterr().out.splitlines() == [looked_at, "whole and undamaged"]


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        ("c/store/*/shard-00000.npy", "is damaged (its checksum does not match)"),
        ("c/embeddings.npy", "is not what was exported (its checksum does not match)"),
        ("c/chunks.parquet", "is not what was exported"),
    ],
)
def test_a_flipped_bit_anywhere_is_found(
    output: Path, capsys: pytest.CaptureFixture[str], damaged: str, words: str
) -> None:
    (path,) = output.glob(damaged)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    assert main(["verify", str(output)]) == 1
    assert words in capsys.readouterr().out


def test_vectors_of_another_text_are_found_by_computing_some_again(
    output: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ultimate_embedder import upkeep

    real = upkeep._sample
    monkeypatch.setattr(upkeep, "_sample", lambda points, count: (["something else"] * 3, real(points, 3)[1]))
    assert main(["verify", str(output)]) == 1
    assert "does not agree with its text (cosine" in capsys.readouterr().out


def test_a_folder_that_is_no_output_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "verify"):
        assert main([command, str(tmp_path)]) == 2
        assert "is not an output of ultimate-embedder" in capsys.readouterr().err
