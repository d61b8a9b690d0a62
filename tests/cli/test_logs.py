"""`-v`, `--log-level` and `--log-file`: how much is said, and where."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.cli.logs import LEVELS, capture_logs
from ultimate_embedder.terminal import PACKAGE_LOGGER

DETAIL = "tiny-mpnet: folder "
BATCH = '"event": "BatchEncoded"'
PROGRESS = "docs: 1 chunk, 1 distinct text"
WARNING = "warning: --precision fp16: a CPU computes in fp32"


@pytest.fixture
def words(write_chunks: WriteChunks, tmp_path: Path) -> list[object]:
    chunks, model = write_chunks(["some words"]), tiny_model("mpnet")  # which sentence-transformers loads
    where = ["embed", chunks, "-o", tmp_path / "out", "--models", model, "--devices", "cpu", "--fresh"]
    return [*where, "--precision", "fp16", "--export", "npy"]


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ([], [PROGRESS, WARNING]),
        (["--log-level", "error"], []),
        (["--log-level", "warning"], [WARNING]),
        (["--log-level", "info"], [PROGRESS, WARNING, DETAIL]),
        (["-v"], [PROGRESS, WARNING, DETAIL]),
        (["-vv"], [PROGRESS, WARNING, DETAIL, BATCH]),
        (["-q"], []),
        (["-q", "-v"], [PROGRESS, WARNING, DETAIL]),
    ],
    ids=lambda value: "".join(value) if value and value[0].startswith("-") else "",
)
def test_a_level_shows_what_it_should(run: Run, words: list[object], level: list[str], shown: list[str]) -> None:
    done = run(*words, *level)
    assert done.code == 0
    assert [each for each in (PROGRESS, WARNING, DETAIL, BATCH) if each in done.err] == shown
    assert ("info: sentence_transformers" in done.err) == (BATCH in shown)  # libraries, only with debug
    assert logging.getLogger(PACKAGE_LOGGER).level == logging.NOTSET


def test_the_log_file_has_details_that_the_screen_does_not_have(run: Run, words: list[object], tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run.log"
    for _ in range(2):
        done = run(*words, "--log-file", log)
        assert DETAIL not in done.err
        assert f"log: {log}" in done.out.splitlines()
    lines = log.read_text().splitlines()
    assert sum(f"INFO ultimate_embedder: {PROGRESS}" in line for line in lines) == 2  # a second run is appended
    assert sum(f"INFO ultimate_embedder: {DETAIL}" in line for line in lines) == 2
    assert sum(f"WARNING ultimate_embedder: {WARNING}" in line for line in lines) == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a file that is always full")  # noqa: PTH110
def test_a_full_disk_does_not_fail_the_run_and_is_said_once(run: Run, words: list[object]) -> None:
    done = run(*words, "--log-file", "/dev/full")
    assert done.code == 0
    assert done.err.count("/dev/full is incomplete: [Errno 28] No space left on device") == 1
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("level", "least"), [("warning", "warning"), ("info", "warning"), ("debug", "debug")])
def test_libraries_are_heard_from_their_own_level(level: str, least: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers[:]
    with capture_logs(level):
        for name in ("debug", "info", "warning"):
            logging.getLogger("httpx").log(LEVELS[name], "request %s\x1b", name)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(True)  # pytest has its own hook
            warnings.warn("old", stacklevel=1)
    shown = capsys.readouterr().err
    expected = {"warning": ["warning"], "debug": ["debug", "info", "warning"]}[least]
    assert [name for name in ("debug", "info", "warning") if f"{name}: httpx: request {name}\\x1b" in shown] == expected
    assert "warning: py.warnings: " in shown
    assert logging.getLogger().handlers == before


def test_without_options_nothing_is_captured() -> None:
    before = logging.getLogger().handlers[:]
    with capture_logs() as least:
        assert least is None
        assert logging.getLogger().handlers == before


def test_in_python_messages_go_to_the_logger_if_it_has_a_level(
    write_chunks: WriteChunks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: Any = {"models": [str(tiny_model("mpnet"))], "exports": "npy", "quiet": True}
    embed(write_chunks(["some words"]), tmp_path / "one", **options)
    assert [record for record in caplog.records if record.name == PACKAGE_LOGGER] == []
    with caplog.at_level(logging.INFO, PACKAGE_LOGGER):
        embed(write_chunks(["some words"]), tmp_path / "two", **options)
    messages = [record.getMessage() for record in caplog.records if record.name == PACKAGE_LOGGER]
    assert any(message.startswith(PROGRESS) for message in messages)
    assert any(message.startswith(DETAIL) for message in messages)


def test_commands_that_show_no_progress_take_the_options_too(run: Run, tmp_path: Path) -> None:
    done = run("models", "list", "-v", "--log-file", tmp_path / "x.log")
    assert (done.code, done.err) == (0, "")
