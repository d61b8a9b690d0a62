"""The command `plan`: tables, JSON, exit codes, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import Plan

TEXTS = [f"text number {number} " * (number % 9 + 1) for number in range(20)]


@pytest.fixture
def chunks(write_chunks: WriteChunks) -> Path:
    return write_chunks(TEXTS)


def bert() -> Path:
    return tiny_model("bert", hidden=32, layers=2)


def test_the_table_ends_with_the_verdict(run: Run, chunks: Path) -> None:
    done = run("plan", chunks, "--models", bert(), "--devices", "cpu")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[-1].startswith("fits: ")
    assert "20 chunks in 1 file; 20 distinct texts -> 20 points with 32 dims" in done.out
    assert "tiny-bert: + 20 new, = 0 stored, - 0 removed" in done.out
    assert "tokens of a text, the longest has" in done.out


def test_what_is_not_known_is_said_with_what_would_tell_it(run: Run, chunks: Path) -> None:
    done = run("plan", chunks, "--models", f"{bert()},{tiny_model('mpnet', hidden=32, layers=1)}", "--gpus", "2x15GiB")
    assert done.code == 0, done.err
    assert "how long is not known (name the card, such as --gpus t4x2" in done.out.splitlines()[-1]
    assert "to encode" in next(line for line in done.out.splitlines() if line.startswith("  mode  "))
    small = run("plan", chunks, "--models", bert(), "--gpus", "20kB", "--devices", "cpu")
    assert small.code == 1
    assert "note: --devices cpu is ignored: --gpus 20kB says what the plan is for" in small.out
    assert "(ceiling 18 kB)" in small.out.splitlines()[-1]
    missing = run("plan", chunks, "--models", "some/model", "--offline")
    assert missing.code == 1
    assert "Run 'ultimate-embedder models pull some/model'" in missing.out


def test_json_is_the_whole_plan(run: Run, chunks: Path, tmp_path: Path) -> None:
    done = run("plan", chunks, "-o", tmp_path / "out", "--models", bert(), "--gpus", "cpu", "--json", "-q")
    assert (done.code, done.err) == (0, "")
    shown = Plan.model_validate_json(done.out)
    stored = json.loads((tmp_path / "out" / "plan.json").read_text("utf-8"))
    stored.pop("checksum")
    assert shown == Plan.model_validate(stored)
    assert shown.command[:2] == ["plan", str(chunks)]


def test_what_does_not_fit_exits_with_one(run: Run, chunks: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    nothing = run("plan", tmp_path / "empty")
    assert nothing.code == 1
    assert nothing.out.splitlines()[-1].startswith("nothing to embed: no chunk files below")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--gpus", "t4x0"], "--gpus t4x0: give 1 to 64 cards"),
        (["--gpus", "rtx409"], "Did you mean rtx4090?"),
        (["--gpu", "t4"], "Did you mean --gpus?"),
        (["--session", "long"], "--session long: write a duration"),
        (["--price-per-hour", "free"], "--price-per-hour free"),
        (["--precision", "fp8"], "--precision fp8: not one of"),
        (["--models", "no-such-model"], "neither a known model nor a folder"),
        (["--calibrate", "--gpus", "t4"], "--calibrate measures this machine"),
    ],
)
def test_a_mistake_is_answered_with_what_to_write(run: Run, chunks: Path, words: list[str], part: str) -> None:
    done = run("plan", chunks, *words)
    assert done.code == 2
    assert part in done.err


def test_it_needs_chunks_and_reads_an_option_file(run: Run, chunks: Path, tmp_path: Path) -> None:
    assert "plan needs CHUNKS" in run("plan").err
    file = tmp_path / "run.toml"
    saved = run("embed", chunks, "-o", tmp_path / "out", "--models", bert(), "--dry-run", "--save-config", file)
    assert saved.code == 0, saved.err
    done = run("plan", "--config", file, "--gpus", "cpu", "--max-tokens", "8", "--json")
    assert done.code == 0, done.err
    made = Plan.model_validate_json(done.out)
    assert made.output == str(tmp_path / "out")
    assert made.collections[0].passes[0].truncated == len(TEXTS)


def test_help_describes_its_own_options_only(run: Run) -> None:
    done = run("plan", "--help")
    for flag in ("--gpus", "--calibrate", "--price-per-hour", "--session", "--json", "--models"):
        assert flag in done.out
    assert "--safety-margin" not in done.out
    assert "All options of embed apply too" in done.out


def test_names_cannot_steer_the_terminal(run: Run, write_chunks: WriteChunks) -> None:
    chunks = write_chunks(TEXTS[:2], collection="evil\x1b[31m")
    done = run("plan", chunks, "--models", bert(), "--gpus", "cpu")
    assert "\x1b" not in done.out + done.err
