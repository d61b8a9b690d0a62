"""Odd names, odd terminals and closed streams, from the command line."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import WriteChunks
from tests.support.qdrant_server import Fault, QdrantServer
from tests.support.tiny_models import tiny_model
from ultimate_embedder import cli, embed, events
from ultimate_embedder.cli import main
from ultimate_embedder.report import make_progress

EVIL = "\x1b[2J\x9b\u202e"
CLOSED_AT_START = {"stdout": None, "stderr": None}
posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX names and pipes")


def is_harmless(text: str) -> bool:
    return not any(character in text for character in EVIL if character.isprintable() is False)


def words(chunks: Path, out: Path) -> list[str]:
    model = str(tiny_model("bert"))
    return [
        "embed",
        str(chunks),
        "--output",
        str(out),
        "--models",
        model,
        "--devices",
        "cpu",
        "--export",
        "npy,parquet",
    ]


@pytest.fixture
def evil_chunks(tmp_path: Path) -> Path:
    """Collections, files and records that were named by somebody with a sense of humour."""
    for name in ("docs", f"evil{EVIL}"):
        folder = tmp_path / "chunks" / name
        folder.mkdir(parents=True)
        (folder / f"{EVIL}\nerror: forged_chunks.json").write_text(json.dumps([{f"key{EVIL}": 1}, "fine"]), "utf-8")
    return tmp_path / "chunks"


@posix
def test_nothing_from_outside_reaches_the_terminal_raw(
    evil_chunks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"out{EVIL}"
    codes = [main(words(evil_chunks, out))]
    codes += [main([command, str(out), *more]) for command, more in (("status", []), ("verify", ["--sample", "0"]))]
    codes += [main(["upload", str(out), "--url", f"http://x{EVIL}:1", "--collection", EVIL])]
    codes += [main(["models", "verify", EVIL]), main(["models", "show", EVIL])]
    with pytest.raises(SystemExit):
        main(["embed", EVIL, f"--{EVIL}", "http://user:secret@host"])
    shown = capsys.readouterr()
    assert codes == [1, 0, 0, 2, 2, 2]
    assert is_harmless(shown.out)
    assert is_harmless(shown.err)
    assert "secret" not in shown.err
    assert not any(line.startswith("error: forged") for line in (shown.out + shown.err).splitlines())


def test_a_traceback_is_printed_escaped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise RuntimeError(f"odd {EVIL}")

    monkeypatch.setattr(cli, "main", fail)
    assert cli.run() == 1
    shown = capsys.readouterr().err
    assert "RuntimeError: odd \\x1b[2J" in shown
    assert is_harmless(shown)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_an_odd_terminal_does_not_fail_a_run(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    chunks, streams = write_chunks(["a text"], collection="表"), {}
    for name in ("stdout", "stderr"):
        streams[name] = io.TextIOWrapper(io.BytesIO(), encoding, errors="strict")
        monkeypatch.setattr(sys, name, streams[name])
    assert main(words(chunks, tmp_path / "out")) == 0
    assert main([*words(chunks, tmp_path / "out"), "--json"]) == 0
    shown = {name: stream.buffer.getvalue().decode("ascii", "replace") for name, stream in streams.items()}
    assert shown["stdout"].splitlines()[1].split()[:2] == ["\\u8868", "completed"]
    assert json.loads(shown["stdout"][shown["stdout"].index("\n{\n") :])["collections"][0]["collection"] == "表"
    assert "\\u8868: 1 chunk, 1 distinct text" in shown["stderr"]


def test_python_callers_get_their_progress_on_an_odd_stream_too(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", errors="strict")
    monkeypatch.setattr(sys, "stderr", stream)
    embed(write_chunks(["a text"], "表"), tmp_path / "out", models=[str(tiny_model("bert"))], exports="npy")
    shown = stream.buffer.getvalue().decode()
    assert "\\u8868 \\xb7 tiny-bert on cpu: 1 of 1" in shown  # the last line: progress was not given up at the first


def test_progress_escapes_names_and_messages(capfd: pytest.CaptureFixture[str]) -> None:
    with make_progress(quiet=False) as sink:
        sink(events.Warned(collection=EVIL, message=f"Traceback:\n  File {EVIL}"))
        sink(events.UploadStarted(collection=EVIL, target=EVIL, points=1, uploaded=0, created=True))
        sink(events.CollectionFinished(collection=EVIL, status="failed", error=EVIL))
    shown = capfd.readouterr().err
    assert is_harmless(shown)
    assert "\n  |   File \\x1b" in shown


# closed streams


@posix
@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&- 0<&-", "| true", "2>&1 | true"])
def test_a_closed_stream_does_not_change_the_exit_code(closed: str) -> None:
    shell = f'"$@" {closed}; exit ${{PIPESTATUS[0]}}'
    command = [sys.executable, "-m", "ultimate_embedder", "models", "list"]
    done = subprocess.run(["bash", "-c", shell, "bash", *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class Gone(io.TextIOWrapper):
    """A terminal that was closed: every write fails."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_a_terminal_that_is_gone_does_not_change_the_exit_code(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = write_chunks(["a text"])
    for streams in ({"stdout": Gone(io.BytesIO(), "utf-8"), "stderr": Gone(io.BytesIO(), "utf-8")}, CLOSED_AT_START):
        for name, stream in streams.items():
            monkeypatch.setattr(sys, name, stream)
        assert main(words(chunks, tmp_path / "out")) == 0
        assert main([*words(chunks, tmp_path / "out"), "--json"]) == 0


# passwords in URLs


def test_a_password_in_the_url_is_used_and_neither_shown_nor_stored(
    write_chunks: WriteChunks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    embed(write_chunks(["a text"]), out, models=[str(tiny_model("bert"))], exports="parquet", quiet=True)
    with QdrantServer() as server:
        url = server.url.replace("://", "://some%40body:s3cr%2Fet@")
        server.faults = [Fault("POST", "/count", status=400, body=f"no {EVIL}".encode())]
        assert main(["upload", str(out), "--url", url]) == 1
        stored = "".join(path.read_text("utf-8", "replace") for path in out.rglob("*.json*"))
        assert main(["upload", str(out), "--url", url]) == 0
        assert {request.authorization for request in server.requests} == {"Basic c29tZUBib2R5OnMzY3IvZXQ="}
    for wrong in ("http://user:s3cr/et@host", "user:s3cret@:99999999", "http://user:s3cret@ho st"):
        assert main(["upload", str(out), "--url", wrong]) in (1, 2)
    shown = capsys.readouterr()
    told = shown.out + shown.err
    assert not any(secret in told + stored for secret in ("s3cr", "body"))
    assert is_harmless(told)
