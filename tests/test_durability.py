"""Nothing lost, nothing done twice: interruptions, damage, and moving on."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.clock import HANG_S, Clock, wait_until
from tests.support.slow import slow
from tests.support.tiny_models import tiny_model
from ultimate_embedder import RunSummary, embed
from ultimate_embedder.cli import main
from ultimate_embedder.errors import OutputError, UsageError
from ultimate_embedder.models import Encoder
from ultimate_embedder.stop import StopSwitch, parse_deadline
from ultimate_embedder.vectors import store

# After the first batch, forwards wait until the run is asked to stop.
WAITING = """
import sys, threading
from pathlib import Path
from ultimate_embedder.cli import main
from ultimate_embedder.models import Encoder
from ultimate_embedder.stop import StopSwitch
events = Path(sys.argv.pop(1))
stopped, forward, stop = threading.Event(), Encoder.forward, StopSwitch.stop
def forward_or_wait(self, batch):
    if events.exists() and "BatchEncoded" in events.read_text():
        stopped.wait(300)
    return forward(self, batch)
def stop_and_tell(self, reason):
    stop(self, reason)
    stopped.set()
Encoder.forward, StopSwitch.stop = forward_or_wait, stop_and_tell
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def chunks(tmp_path: Path) -> Path:
    return write(tmp_path / "chunks", [f"text number {number} " * (number % 9 + 1) for number in range(300)])


def write(root: Path, texts: list[str]) -> Path:
    (root / "c").mkdir(parents=True, exist_ok=True)
    (root / "c" / "t_chunks.json").write_text(json.dumps(texts))
    return root


def run(chunks: Path, output: Path, **options: Any) -> RunSummary:
    options = {"models": str(tiny_model("bert")), "devices": "cpu", "exports": "npy,parquet", **options}
    return embed(chunks, output, quiet=True, **options)


def arguments(chunks: Path, output: Path, *more: str) -> list[str]:
    model = str(tiny_model("bert"))
    words = ["embed", str(chunks), "--output", str(output), "--models", model, "--devices", "cpu", "--quiet"]
    return [*words, "--export", "npy,parquet", "--json", *more]


def vectors(output: Path) -> np.ndarray:
    return np.asarray(np.load(output / "c" / "embeddings.npy"))


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def only_shard(output: Path) -> Path:
    (shard,) = output.glob("c/store/*/shard-*.npy")
    return shard


# stopping in time


def test_a_deadline_stops_in_time_keeps_what_is_done_and_the_next_run_goes_on(
    chunks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events = tmp_path / "out" / "events.jsonl"

    def monotonic() -> float:
        """The clock by which a run stops: two hours ahead after the first batch."""
        late = events.exists() and "BatchEncoded" in events.read_text()
        return time.monotonic() + (7200 if late else 0)

    with monkeypatch.context() as patched:
        patched.setattr("ultimate_embedder.stop.time", SimpleNamespace(monotonic=monotonic))
        assert main(arguments(chunks, tmp_path / "out", "--deadline", "1h")) == 3
    (stopped,) = json.loads(capsys.readouterr().out)["collections"]
    assert stopped["status"] == "partial"
    assert stopped["chunks"]["embedded"] == stopped["passes"][0]["encoded_texts"]  # counted is what has a vector
    assert stopped["error"] == "stopped: the deadline is near. Run the same command again to resume."
    assert 0 < stopped["passes"][0]["encoded_texts"] < 300
    assert not (tmp_path / "out" / "c" / "embeddings.npy").exists()
    (after,) = run(chunks, tmp_path / "out").collections
    assert after.passes[0].stored_texts == stopped["passes"][0]["encoded_texts"]
    assert after.chunks.newly_encoded == 300 - after.passes[0].stored_texts


@pytest.mark.parametrize("number", [slow(signal.SIGINT), signal.SIGTERM])
def test_a_run_refuses_a_second_writer_and_a_signal_stops_it_and_keeps_what_is_done(
    chunks: Path, tmp_path: Path, number: signal.Signals
) -> None:
    events = tmp_path / "out" / "events.jsonl"
    waiting = [sys.executable, "-c", WAITING, str(events), *arguments(chunks, tmp_path / "out")]
    with subprocess.Popen(waiting, stdout=subprocess.PIPE) as process:
        try:
            wait_until(lambda: events.exists() and "BatchEncoded" in events.read_text())
            with pytest.raises(OutputError, match=f"is in use by process {process.pid} since"):
                run(chunks, tmp_path / "out")
            process.send_signal(number)
            out, _ = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
    assert process.returncode == 3
    (stopped,) = json.loads(out)["collections"]
    assert (stopped["status"], stopped["passes"][0]["encoded_texts"] > 0) == ("partial", True)
    assert f"interrupted by {number.name}" in stopped["error"]
    assert run(chunks, tmp_path / "out").ok


# in a process of its own, which a hangup that is not handled would end
HANGUPS = """
import signal
from ultimate_embedder.stop import StopSwitch

reasons = []
for handler in (signal.SIG_DFL, signal.SIG_IGN):
    signal.signal(signal.SIGHUP, handler)
    stop = StopSwitch()
    with stop.on_signals():
        signal.raise_signal(signal.SIGHUP)
        reasons.append(str(stop.reason))
    assert signal.getsignal(signal.SIGHUP) == handler
print(", ".join(reasons), end="")
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no hangup")
def test_a_hangup_stops_the_run_unless_it_is_ignored_as_under_nohup() -> None:
    done = subprocess.run([sys.executable, "-c", HANGUPS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted by SIGHUP, None", "")


def test_a_second_ctrl_c_leaves_at_once() -> None:
    stop = StopSwitch()
    with stop.on_signals():
        signal.raise_signal(signal.SIGINT)  # unlike os.kill: to this thread, and at once
        assert stop.reason == "interrupted by SIGINT"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)  # unlike os.kill: to this thread, and at once


@pytest.mark.parametrize(("word", "seconds"), [("11h30m", 41400), ("45m", 2700), ("90s", 90), ("1.5h", 5400)])
def test_a_deadline_may_be_a_duration(word: str, seconds: float) -> None:
    assert parse_deadline(word) == seconds


def test_a_deadline_may_be_a_clock_time() -> None:
    assert 0 <= parse_deadline("18:30") < 24 * 3600


@pytest.mark.parametrize("word", ["soon", "", "25:00", "12", "1h30", "5d"])
def test_a_deadline_that_makes_no_sense_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="write a duration"):
        parse_deadline(word)


def test_a_clock_that_is_set_back_does_not_prolong_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("ultimate_embedder.stop.time", clock)
    stop = StopSwitch(deadline_s=100)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    clock.advance(90)
    assert stop.reason is None
    clock.advance(10)
    assert stop.reason == "the deadline is near"


# damage


def test_a_flipped_bit_is_found_and_only_its_shard_is_redone(
    chunks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SHARD_ROWS", 64)
    run(chunks, tmp_path / "out")
    before = vectors(tmp_path / "out")
    shards = sorted((tmp_path / "out").glob("c/store/*/shard-*.npy"))
    rows = len(np.load(shards[1], mmap_mode="r"))
    flip_a_byte(shards[1])
    (after,) = run(chunks, tmp_path / "out").collections
    assert after.chunks.newly_encoded == rows < 300
    assert f"{shards[1]} is damaged (its checksum does not match); recomputing its {rows} vectors" in after.warnings
    assert (vectors(tmp_path / "out") * before).sum(1).min() > 0.99999
    assert run(chunks, tmp_path / "out").collections[0].warnings == []


def test_a_full_disk_is_said_in_words_and_a_healthy_run_follows(chunks: Path, tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    words = [sys.executable, "-m", "ultimate_embedder", *arguments(chunks, tmp_path / "out")]
    done = subprocess.run(words, preexec_fn=small_files, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"cannot write to" in done.stdout + done.stderr
    assert b"File too large" in done.stdout + done.stderr
    assert run(chunks, tmp_path / "out").ok
    assert vectors(tmp_path / "out").shape == (300, 64)


def test_too_little_room_is_refused_before_any_work(
    chunks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    (failed,) = run(chunks, tmp_path / "out").collections
    assert failed.status == "failed"
    assert "0.0 GB free" in (failed.error or "")
    assert failed.chunks.newly_encoded == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_output_is_refused(chunks: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o500)
    with pytest.raises(OutputError, match="cannot write to"):
        run(chunks, tmp_path / "out")


# doing nothing twice


def test_a_finished_collection_is_only_verified(chunks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(chunks, tmp_path / "out")
    written = (tmp_path / "out" / "c" / "embeddings.npy").stat().st_mtime_ns
    monkeypatch.setattr(Encoder, "forward", None)
    (again,) = run(chunks, tmp_path / "out").collections
    assert (again.status, again.chunks.embedded, again.chunks.newly_encoded) == ("completed", 300, 0)
    assert (tmp_path / "out" / "c" / "embeddings.npy").stat().st_mtime_ns == written
    assert len(again.exports) == 2


def test_equal_texts_are_encoded_once(tmp_path: Path) -> None:
    chunks = write(tmp_path / "chunks", ["same", "other", "same", "same"])
    (done,) = run(chunks, tmp_path / "out").collections
    assert (done.chunks.embedded, done.chunks.newly_encoded) == (4, 2)
    made = vectors(tmp_path / "out")
    assert np.array_equal(made[0], made[2])


def test_fresh_recomputes_everything(chunks: Path, tmp_path: Path) -> None:
    run(chunks, tmp_path / "out")
    assert run(chunks, tmp_path / "out", fresh=True).collections[0].chunks.newly_encoded == 300


def test_another_limit_is_another_pass_and_the_difference_is_named(chunks: Path, tmp_path: Path) -> None:
    run(chunks, tmp_path / "out")
    (again,) = run(chunks, tmp_path / "out", max_tokens=32).collections
    assert again.chunks.newly_encoded == 300
    assert again.warnings == ["a new pass is started: max_tokens was None and is 32"]
    assert len(list((tmp_path / "out").glob("c/store/*/pass.json"))) == 2


def test_a_damaged_export_is_rewritten(chunks: Path, tmp_path: Path) -> None:
    run(chunks, tmp_path / "out")
    before = (tmp_path / "out" / "c" / "embeddings.npy").read_bytes()
    flip_a_byte(tmp_path / "out" / "c" / "embeddings.npy")
    assert run(chunks, tmp_path / "out").collections[0].chunks.newly_encoded == 0
    assert (tmp_path / "out" / "c" / "embeddings.npy").read_bytes() == before


def test_an_export_of_earlier_chunks_is_deleted(chunks: Path, tmp_path: Path) -> None:
    run(chunks, tmp_path / "out", exports="npy,parquet")
    write(chunks, ["only", "two"])
    (done,) = run(chunks, tmp_path / "out", exports="npy").collections
    assert not (tmp_path / "out" / "c" / "chunks.parquet").exists()
    path = tmp_path / "out" / "c" / "chunks.parquet"
    assert done.warnings == [f"deleted {path}: it was out of date, and --export does not include parquet"]


def test_an_output_among_the_chunks_is_refused_or_told(chunks: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains chunk files"):
        run(chunks, chunks / "c")
    run(chunks, chunks / "out")
    (warning,) = run(chunks, tmp_path / "elsewhere").warnings
    assert warning.startswith(f"{chunks / 'out'}: skipped, as it is an output of ultimate-embedder")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"collections": ","}, "--collections is empty"),
        ({"exports": ""}, "--export is empty"),
        ({"fresh": True, "resume_from": "."}, "contradict each other"),
        ({"summary": "."}, "--summary . is a folder"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    chunks: Path, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        run(chunks, tmp_path / "out", **options)


# moving


def test_a_copied_output_is_resumed(chunks: Path, tmp_path: Path) -> None:
    run(chunks, tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert run(chunks, tmp_path / "there").collections[0].chunks.newly_encoded == 0


def test_an_earlier_output_can_be_gone_on_from_without_being_touched(chunks: Path, tmp_path: Path) -> None:
    run(chunks, tmp_path / "earlier")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "earlier").rglob("*")}
    write(chunks, [*json.loads((chunks / "c" / "t_chunks.json").read_text()), "one more"])
    (done,) = run(chunks, tmp_path / "out", resume_from=tmp_path / "earlier").collections
    assert (done.chunks.embedded, done.chunks.newly_encoded) == (301, 1)
    assert "300 vectors of the same pass were taken over from" in done.warnings[0]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "earlier").rglob("*")} == before
    shutil.rmtree(tmp_path / "earlier")
    assert run(chunks, tmp_path / "out").collections[0].chunks.newly_encoded == 0


def test_a_resume_from_that_is_not_there_is_refused(chunks: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--resume-from .* is not a folder"):
        run(chunks, tmp_path / "out", resume_from=tmp_path / "nowhere")
