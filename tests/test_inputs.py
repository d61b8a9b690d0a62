"""A run with several inputs, standard input or data in memory, and what is said about them before it begins."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.cli import main
from ultimate_embedder.errors import UsageError
from ultimate_embedder.export.points_file import PointsFile


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny_model("bert"))


def run(chunks: Any, output: Path, model: str, **options: Any) -> dict[str, Any]:
    """The statuses and numbers of chunks by collection."""
    summary = embed(chunks, output, models=[model], devices="cpu", exports="parquet", quiet=True, **options)
    assert summary.error is None
    return {each.collection: (each.status, each.chunks.embedded, each.chunks.rejected) for each in summary.collections}


def texts_in(output: Path, collection: str) -> list[str]:
    points = PointsFile.open(output / collection / "chunks.parquet")
    return [payload["text"] for _, _, payloads in points.batches(10) for payload in payloads]


def left_in(output: Path) -> list[str]:
    return sorted(path.name for path in output.iterdir())


def pipe(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_list_of_texts_is_embedded_and_its_file_is_gone_afterwards(tmp_path: Path, model: str) -> None:
    out = tmp_path / "out"
    assert run(["one", "two", ""], out, model) == {"chunks": ("completed", 2, 1)}
    assert texts_in(out, "chunks") == ["one", "two"]
    assert left_in(out) == [".ultimate-embedder.lock", "chunks", "events.jsonl", "report.html", "summary.json"]
    options = json.loads((out / "summary.json").read_text("utf-8"))["options"]
    assert (options["chunks"], options["name"]) == (["list in memory"], None)
    first = json.loads((out / "events.jsonl").read_text("utf-8").splitlines()[0])
    assert first["options"]["chunks"] == ["list in memory"]


def test_a_second_run_with_the_same_texts_reuses_their_vectors(tmp_path: Path, model: str) -> None:
    embed(pa.table({"text": ["one", "two"]}), tmp_path / "out", models=[model], name="faq", exports="npy", quiet=True)
    again = embed(["one", "two", "three"], tmp_path / "out", models=[model], name="faq", exports="npy", quiet=True)
    [done] = again.collections
    assert (done.collection, done.chunks.embedded, done.chunks.newly_encoded) == ("faq", 3, 1)


def test_a_dry_run_of_data_in_memory_writes_nothing(tmp_path: Path, model: str) -> None:
    assert run(["one"], tmp_path / "out", model, dry_run=True) == {"chunks": ("planned", 0, 0)}
    assert not (tmp_path / "out").exists()


def test_a_generator_that_raises_leaves_no_output(tmp_path: Path, model: str) -> None:
    with pytest.raises(UsageError, match="ZeroDivisionError after 0 items"):
        run((1 // 0 for _ in range(3)), tmp_path / "out", model)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content",
    [
        b'{"text": "one"}\n{"text": "two"}\n',
        b'[{"text": "one"}, {"text": "two"}]',
        b'"one"\n"two"\n',
        b"id,text\n1,one\n2,two\n",
        b'"id";"text"\n1;one\n2;two\n',
        '{"text": "one"}\n{"text": "two"}\n'.encode("utf-16"),
        gzip.compress(b"id\ttext\n1\tone\n2\ttwo\n"),
    ],
    ids=["lines", "list", "strings", "csv", "quoted-csv", "utf-16", "gzip-tsv"],
)
def test_standard_input_is_recognised_by_its_first_bytes(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    pipe(monkeypatch, content)
    assert run("-", tmp_path / "out", model) == {"stdin": ("completed", 2, 0)}
    assert texts_in(tmp_path / "out", "stdin") == ["one", "two"]
    files = [".ultimate-embedder.lock", "events.jsonl", "report.html", "stdin", "summary.json"]
    assert left_in(tmp_path / "out") == files


def test_empty_standard_input_is_refused(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"")
    with pytest.raises(UsageError, match="standard input is empty"):
        run("-", tmp_path / "out", model)


def test_a_pipe_into_the_command_is_embedded_beside_other_inputs(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.csv").write_text("text\nthree\n")
    (tmp_path / "a.jsonl").write_text('"four"\n')
    monkeypatch.chdir(tmp_path)
    reading, writing = os.pipe()
    os.write(writing, b'{"text": "one"}\n{"text": "two"}\n')
    os.close(writing)
    words = ["embed", "-", "a.jsonl", "b", "--output", "out", "--models", model, "--devices", "cpu", "--export", "npy"]
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main([*words, "--quiet", "--json"]) == 0
    collections = json.loads(capsys.readouterr().out)["collections"]
    found = {each["collection"]: each["chunks"]["embedded"] for each in collections}
    assert found == {"stdin": 2, "a": 1, "b": 1}


def test_a_pattern_is_expanded_by_the_command(tmp_path: Path, model: str) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"text\n{name}\n")
    words = ["embed", str(tmp_path / "*.csv"), "--output", str(tmp_path / "out"), "--models", model, "--devices", "cpu"]
    assert main([*words, "--quiet", "--name", "both"]) == 0
    assert sorted(texts_in(tmp_path / "out", "both")) == ["a", "b"]


def refusal(chunks: Any, output: Path, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        embed(chunks, output, quiet=True, **options)
    assert not output.exists() or not list(output.glob("*/store"))
    return str(caught.value)


def test_inputs_that_would_be_one_collection_are_refused_with_both(tmp_path: Path) -> None:
    one, two = tmp_path / "x" / "a.jsonl", tmp_path / "y" / "a.csv"
    for path in (one, two):
        path.parent.mkdir()
        path.write_text('"text"\n')
    message = refusal([one, two], tmp_path / "out")
    assert message == (
        f"{one} and {two} would both be the collection a. Rename one of them, or give --name to make one collection of "
        "everything."
    )


def test_all_that_is_wrong_with_names_is_said_in_one_message(write_chunks: WriteChunks, tmp_path: Path) -> None:
    for name in ("a b", "a_b", "Docs", "docs", "nul"):
        chunks = write_chunks(["one"], name)
    message = refusal(chunks, tmp_path / "out")
    assert "the collections Docs and docs would both be one folder" in message
    assert "the collections a b and a_b would both be the Qdrant collection" in message
    assert "nul: its name is the name of a device on Windows. Rename" in message


def test_a_bad_name_is_said_at_the_start_and_the_others_are_embedded(
    write_chunks: WriteChunks, tmp_path: Path, model: str
) -> None:
    for name in ("nul", "docs", "aux"):
        chunks = write_chunks(["one"], name)
    found = run(chunks, tmp_path / "out", model)
    assert found == {"nul": ("failed", 0, 0), "docs": ("completed", 1, 0), "aux": ("failed", 0, 0)}
    events = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text("utf-8").splitlines()]
    warned = next(number for number, event in enumerate(events) if event["event"] == "Warned")
    assert events[warned]["message"].startswith("cannot be embedded: aux: its name is the name of a device on Windows.")
    assert "nul: its name" in events[warned]["message"]
    assert warned < next(number for number, event in enumerate(events) if event["event"] == "CollectionFinished")


def test_vectors_are_not_written_among_the_chunk_files(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.jsonl").write_text('"one"\n')
    message = refusal(tmp_path / "docs", tmp_path)
    assert message == (
        f"the vectors of docs would be written to {tmp_path / 'docs'}, among its chunk files. Give another --output."
    )


def test_an_input_inside_the_output_is_said(tmp_path: Path, model: str) -> None:
    (tmp_path / "chunks" / "docs").mkdir(parents=True)
    (tmp_path / "chunks" / "docs" / "a.jsonl").write_text('"one"\n')
    summary = embed(tmp_path / "chunks", tmp_path, models=[model], devices="cpu", quiet=True)
    assert summary.ok
    assert any("is inside the --output" in warning for warning in summary.warnings)


def test_an_output_is_no_chunk_folder(tmp_path: Path, model: str) -> None:
    run(["one"], tmp_path / "out", model)
    with pytest.raises(UsageError, match="out is an output of ultimate-embedder, not chunks"):
        run(tmp_path / "out", tmp_path / "other", model)
    assert not (tmp_path / "other").exists()
