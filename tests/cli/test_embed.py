"""What can be known before chunks are read is refused then, once, with exit code 2, and leaves nothing behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.cli import main
from ultimate_embedder.errors import UsageError
from ultimate_embedder.output import LOCK_NAME

both_ways = pytest.mark.parametrize("extra", [[], ["--dry-run"]], ids=["embed", "dry-run"])


@pytest.fixture
def chunks(write_chunks: WriteChunks) -> Path:
    for collection in ("one", "two"):
        root = write_chunks(["some words"], collection=collection)
    return root


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The message of a command that is refused as wrong usage."""
    capsys.readouterr()  # what making a tiny model printed
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    return err


@both_ways
@pytest.mark.parametrize(
    ("option", "word", "package", "message"),
    [
        (
            "--precision",
            "int8",
            "onnx",
            "--backend openvino needs onnx: pip install 'ultimate-embedder[openvino]'",
        ),
        ("--backend", "onnx", "onnx", "--backend onnx needs onnx: pip install 'ultimate-embedder[onnx]'"),
        (
            "--backend",
            "openvino",
            "openvino",
            "--backend openvino needs openvino: pip install 'ultimate-embedder[openvino]'",
        ),
    ],
)
def test_a_backend_that_is_not_installed_is_refused_once(
    chunks: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    extra: list[str],
    option: str,
    word: str,
    package: str,
    message: str,
) -> None:
    for name in ("onnx", "onnxruntime", "openvino"):
        if name != package:
            pytest.importorskip(name)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    monkeypatch.setenv("ULTIMATE_EMBEDDER_COMPILE", "off")  # else int8 needs no package
    words = ["embed", chunks, "--output", tmp_path / "out", "--devices", "cpu", option, word, *extra]
    assert refusal(capsys, *words) == f"error: {message}\n"
    assert not (tmp_path / "out").exists()


@both_ways
def test_more_tokens_than_a_model_has_positions_for_are_refused_once(
    chunks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: list[str]
) -> None:
    model = tiny_model("xlm-roberta", max_tokens=100)
    words = ["embed", chunks, "--output", tmp_path / "out", "--models", model, "--devices", "cpu", "--max-tokens", 101]
    expected = f"error: --max-tokens 101: {model.name} supports at most 100 tokens. Lower --max-tokens.\n"
    assert refusal(capsys, *words, "--quiet", *extra) == expected
    assert not (tmp_path / "out").exists()


def test_a_refused_run_removes_no_file_that_it_did_not_write(
    chunks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "events.jsonl").write_text("mine")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    refusal(capsys, "embed", chunks, "--output", tmp_path / "out", "--backend", "onnx", "--devices", "cpu")
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize("existed", [True, False])
def test_a_refused_run_leaves_nothing_in_a_folder_that_was_no_output(
    chunks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], existed: bool
) -> None:
    output = tmp_path / "out"
    if existed:
        output.mkdir()
        (output / "mine.txt").touch()
    words = ["embed", chunks, "--output", output, "--models", tiny_model("bert"), "--devices", "tpu", "--quiet"]
    assert refusal(capsys, *words).startswith("error: --devices tpu: not one of auto, cpu")
    assert [path.name for path in output.glob("*")] == (["mine.txt"] if existed else [])
    assert output.exists() == existed


def test_a_refused_run_leaves_its_summary_in_an_output(chunks: Path, tmp_path: Path) -> None:
    model = str(tiny_model("bert"))
    assert embed(chunks, tmp_path / "out", models=model, devices="cpu", exports="npy", quiet=True).ok
    with pytest.raises(UsageError):
        embed(chunks, tmp_path / "out", models=model, devices="tpu", quiet=True)
    assert "--devices tpu" in (tmp_path / "out" / "summary.json").read_text("utf-8")
    assert (tmp_path / "out" / LOCK_NAME).exists()
    assert (tmp_path / "out" / "one" / "embeddings.npy").exists()
