"""`watch`: a run seen from another process, from a copied folder, and from logs that somebody else has written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.report.live.test_state import batch, lease, mitigated, started
from tests.support.clock import wait_until
from tests.support.tiny_models import tiny_model
from ultimate_embedder import events
from ultimate_embedder.cli import watch
from ultimate_embedder.lock import hold_output
from ultimate_embedder.output import LOCK_NAME
from ultimate_embedder.report.live import watch as live_watch

# After the first batch, forwards wait for ever.
WAITING = """
import sys, threading
from pathlib import Path
from ultimate_embedder.cli import main
from ultimate_embedder.models import Encoder
events, forward = Path(sys.argv.pop(1)), Encoder.forward
def forward_or_wait(self, batch):
    if events.exists() and "BatchEncoded" in events.read_text():
        threading.Event().wait()
    return forward(self, batch)
Encoder.forward = forward_or_wait
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe at once that nobody writes any more."""
    monkeypatch.setattr(live_watch, "SURE_S", 0.0)
    monkeypatch.setattr(watch, "LOOK_S", 0.01)


@pytest.fixture
def going_on(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """The output of a real run that is under way, and its process; it is killed at the end, if it was not before."""
    folder, out = tmp_path / "chunks" / "docs", tmp_path / "out"
    folder.mkdir(parents=True)
    (folder / "a_chunks.json").write_text(json.dumps([f"text number {number}" for number in range(300)]))
    words = ["embed", str(folder.parent), "-o", str(out), "--models", str(tiny_model("bert")), "--devices", "cpu", "-q"]
    process = subprocess.Popen([sys.executable, "-c", WAITING, str(out / "events.jsonl"), *words])
    log = out / "events.jsonl"
    try:
        wait_until(lambda: log.exists() and "BatchEncoded" in log.read_text())
        yield out, process
    finally:
        process.kill()
        process.wait()


def write_log(out: Path, *given: events.Event) -> Path:
    """An output of which only the log is left."""
    out.mkdir(exist_ok=True)
    begun = {"event": "RunStarted", "timestamp": given[0].timestamp, "chunks": "in", "output": str(out), "options": {}}
    lines = [json.dumps(begun).encode() + b"\n", *(event.as_line() for event in given)]
    (out / "events.jsonl").write_bytes(b"".join(lines))
    return out


def ended(status: Any = "completed", error: str | None = None) -> list[events.Event]:
    """A collection that has come to this end."""
    return [
        events.CollectionStarted(collection="docs", files=1),
        events.CollectionFinished(collection="docs", status=status, error=error),
        events.RunFinished(seconds=3.0),
    ]


def test_a_run_that_is_killed_is_said_to_be_killed(
    going_on: tuple[Path, subprocess.Popen[bytes]], run: Run, tmp_path: Path
) -> None:
    out, process = going_on
    look = run("watch", out, "--once")
    assert look.code == 5
    assert f"{out}: running for " in look.out
    assert f"(process {process.pid} since " in look.out
    assert "tiny-bert on cpu" in look.out
    assert f"in use by process {process.pid}" in run("status", out).err

    process.kill()
    process.wait()
    for words in (["--once"], []):
        look = run("watch", out, *words)
        assert look.code == 1
        assert f"{out}: killed: nobody writes to it any more, and its last event, " in look.out
        assert "Run the same command again to resume." in look.out
    seen = json.loads(run("watch", out, "--once", "--json").out)
    assert (seen["status"], seen["held_by"], seen["is_copy"]) == ("killed", None, False)
    assert 0 < seen["passes"][0]["done"] < 300

    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    assert "perhaps running elsewhere: this is a copy" in run("watch", copy, "--once").out


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        (ended(), 0, "finished in "),
        (ended("partial", "stopped: the deadline is near"), 3, "stopped after "),
        (ended("failed", "no room"), 1, "failed after 0 s: no room"),
        ([events.RunFinished(error="bge is missing")], 1, "failed after 0 s: bge is missing"),
    ],
)
@pytest.mark.parametrize("once", [True, False])
def test_the_exit_code_is_that_of_the_run(
    tmp_path: Path, run: Run, ending: list[events.Event], code: int, words: str, once: bool
) -> None:
    out = write_log(tmp_path / "out", *ending)
    look = run("watch", out, *(["--once"] if once else []))
    assert look.code == code
    assert words in look.out


def test_an_old_copy_of_a_run_that_has_not_ended_is_not_running_here(tmp_path: Path, run: Run) -> None:
    out = write_log(tmp_path / "out", started(), batch(1.0))
    look = run("watch", out)
    assert look.code == 1
    assert "; the run that wrote this is not running here" in look.out


def test_the_state_has_mitigations_warnings_and_leases(tmp_path: Path, run: Run) -> None:
    reduced = mitigated(2.0, "oom_bisect", model="minilm", device="cuda:0", rows=32, longest=512)
    warned = events.Warned(timestamp=started().timestamp, message="the disk is slow")
    out = write_log(tmp_path / "out", lease(), started(), batch(1.0), reduced, reduced, warned)
    with hold_output(out):
        look = run("watch", out, "--once")
    assert look.code == 5
    halved = "docs: minilm on cuda:0: the batch is halved; the size that was too much is remembered (32 x 512 tokens)"
    assert f"{halved} (2 times, last at " in look.out
    assert "the disk is slow" in look.out
    assert "minilm has leased cuda:0 since " in look.out


def test_a_view_goes_on_until_the_run_ends(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    begun = [started(), batch(1.0)]
    steps: list[list[events.Event]] = [[*begun, *ended()], [*begun], [*begun[:1]]]

    def sleep(seconds: float) -> None:
        write_log(out, *steps.pop())

    monkeypatch.setattr(watch, "time", type("time", (), {"sleep": sleep, "monotonic": time.monotonic}))
    with hold_output(out):
        look = run("watch", out)
    assert look.code == 0
    assert f"{out}: no run has begun here yet; waiting for one (Ctrl-C ends)" in look.out
    assert f"{out}: finished in " in look.out


def test_ctrl_c_ends_the_view_and_not_the_run(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    out = write_log(tmp_path / "out", started())

    def sleep(seconds: float) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(watch, "time", type("time", (), {"sleep": sleep, "monotonic": time.monotonic}))
    with hold_output(out):
        look = run("watch", out)
    assert look.code == 130
    assert "stopped watching; the run is not stopped by that" in look.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere"], "nowhere is not a folder. Give the --output of an embed."),
        (["", "--once"], "has no events.jsonl with events of a run. Give the --output of an embed."),
        (["", "--json"], "--json prints one state. Give --once as well."),
    ],
)
def test_invalid_usage_is_said(tmp_path: Path, run: Run, words: list[str], expected: str) -> None:
    look = run("watch", tmp_path / words[0], *words[1:])
    assert look.code == 2
    assert expected in look.err


# logs that somebody else has written


def test_a_hostile_log_does_no_harm(tmp_path: Path, run: Run) -> None:
    odd = "\x1b[2J\x1b]0;owned\x07\nforged: finished\u202e"
    out = write_log(
        tmp_path / "out",
        started(collection=odd, model=odd, devices=[odd] * 500),
        batch(1.0, texts=10**300, collection=odd, device=odd),
        events.Warned(timestamp=1.0, message=odd * 1000),
        mitigated(1.0, odd, model=odd, reason=odd),
        *(batch(1.0, device=f"cuda:{number}", model_pass=number) for number in range(500)),
    )
    with open(out / "events.jsonl", "ab") as log:
        log.write(b'{"event": "BatchEncoded", "timestamp": NaN}\n{"event": 5}\nnull\n' + b"[" * 10_000 + b"\n")
        log.write(b'{"event": "RunFinished", "timestamp": "never", "error": {}}\n')
    (out / LOCK_NAME).write_text('{"pid": "\\u001b[2J", "inode": NaN}')
    for words in (["--once"], ["--once", "--json"], []):
        look = run("watch", out, *words)
        assert look.code == 1
        shown = look.out.replace("\n", "")
        assert shown.isprintable()
        assert not [line for line in look.out.splitlines() if line.startswith("forged")]
        assert len(look.out) < 2_000_000
    assert "6 lines of events.jsonl cannot be read" in run("watch", out, "--once").out


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_pipes_in_the_place_of_its_files_are_not_waited_for(tmp_path: Path, run: Run) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    os.mkfifo(tmp_path / LOCK_NAME)
    assert run("watch", tmp_path, "--once").code == 2
