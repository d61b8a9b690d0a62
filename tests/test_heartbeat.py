"""The lock of an output on a file system that has no locks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed, heartbeat
from ultimate_embedder.errors import OutputError
from ultimate_embedder.lock import HeldOutput, find_holder, hold_output, share_output
from ultimate_embedder.machine import machine_identity, process_start
from ultimate_embedder.output import HELD_NAME

fcntl: Any = pytest.importorskip("fcntl")
HOLD = """
import errno, fcntl, sys, time
from pathlib import Path
from ultimate_embedder.lock import hold_output, share_output

def flock(*_):
    raise OSError(errno.ENOLCK, "No locks available")

fcntl.flock = flock
how = share_output(Path(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else hold_output(Path(sys.argv[1]))
with how:
    print("held", flush=True)
    sys.stdin.read()
"""


def no_flock(*_: Any) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.fixture(autouse=True)
def file_system_without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", no_flock)


@contextlib.contextmanager
def other_process(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds an output until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def refusal(output: Path) -> str:
    with pytest.raises(OutputError) as caught, hold_output(output):
        pass
    return str(caught.value)


def write_record(output: Path, age_s: float = 0.0, **fields: Any) -> Path:
    """A lock of a process on another machine, refreshed some time ago."""
    record = {
        "token": "t",
        "host": "elsewhere",
        "machine": "m",
        "since": "2026-01-01 00:00:00",
        "processes": [[7, "1"]],
    }
    path = output / HELD_NAME
    path.write_text(json.dumps({**record, **fields}))
    refreshed = path.stat().st_mtime - age_s
    os.utime(path, (refreshed, refreshed))
    return path


def held(output: Path) -> HeldOutput:
    with hold_output(output) as found:
        return found


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_without_locks_of_the_file_system_there_is_a_note_and_a_lock_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with hold_output(tmp_path) as found:
        [note] = found.notes
        assert note.startswith(f"{tmp_path} is on a file system without locks ({os.strerror(number)})")
        assert f"is in use by process {os.getpid()} on {socket.gethostname()} since" in refusal(tmp_path)
    assert not (tmp_path / HELD_NAME).exists()
    assert held(tmp_path).token != found.token


def test_the_holder_can_be_found_without_writing(tmp_path: Path) -> None:
    with hold_output(tmp_path):
        before = sorted(tmp_path.iterdir())
        assert str(find_holder(tmp_path).words).startswith(f"process {os.getpid()} on {socket.gethostname()} since")
        assert sorted(tmp_path.iterdir()) == before
    assert find_holder(tmp_path).words is None
    write_record(tmp_path)
    assert find_holder(tmp_path).words == "process 7 on elsewhere since 2026-01-01 00:00:00"
    write_record(tmp_path, age_s=heartbeat.STALE_S + 1)
    assert find_holder(tmp_path).words is None
    write_record(tmp_path, machine=machine_identity(), processes=[[os.getpid(), "another start"]])
    assert find_holder(tmp_path).words is None


def test_any_other_error_of_the_lock_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert refusal(tmp_path) == f"cannot lock {tmp_path}: Input/output error. Choose another --output."


def test_a_run_warns_and_completes(write_chunks: WriteChunks, tmp_path: Path) -> None:
    chunks, model = write_chunks(["a text"]), str(tiny_model("bert"))
    summary = embed(chunks, tmp_path / "out", models=[model], devices="cpu", exports="npy", quiet=True)
    assert summary.ok
    assert any("is on a file system without locks" in warning for warning in summary.warnings)


def test_another_process_is_named_and_its_lock_is_free_as_soon_as_it_is_dead(tmp_path: Path) -> None:
    with other_process(tmp_path) as process:
        assert f"in use by process {process.pid} on {socket.gethostname()} since" in refusal(tmp_path)
        process.kill()
        process.wait()
        assert (tmp_path / HELD_NAME).exists()
        _, taken = held(tmp_path).notes
        assert taken.startswith(f"the lock of process {process.pid} on ")
        assert taken.endswith("was taken over: that process is dead")


def test_a_process_that_ends_releases_its_lock(tmp_path: Path) -> None:
    with other_process(tmp_path) as process:
        process.communicate()
        assert not (tmp_path / HELD_NAME).exists()


def test_a_later_process_with_the_same_id_is_not_taken_for_the_dead_one(tmp_path: Path) -> None:
    write_record(tmp_path, machine=machine_identity(), processes=[[os.getpid(), "long before"]])
    assert "that process is dead" in held(tmp_path).notes[1]


def test_the_lock_of_another_machine_is_taken_over_when_it_was_not_refreshed_for_long(tmp_path: Path) -> None:
    write_record(tmp_path, age_s=heartbeat.STALE_S - 60)
    assert "in use by process 7 on elsewhere since 2026-01-01 00:00:00 (if it is dead: its lock can" in refusal(
        tmp_path
    )
    write_record(tmp_path, age_s=2 * heartbeat.STALE_S)
    assert held(tmp_path).notes[1] == (
        "the lock of process 7 on elsewhere since 2026-01-01 00:00:00 was taken over: it was not refreshed for 10 min"
    )


@pytest.mark.parametrize("content", ["", "not JSON", "[]", '{"token": 1}', '{"processes": 7}'])
def test_a_lock_that_says_nothing_counts_by_its_age(tmp_path: Path, content: str) -> None:
    path = write_record(tmp_path)
    path.write_text(content)
    assert "in use by another process" in refusal(tmp_path)
    os.utime(path, (1, 1))
    assert "the lock of another process was taken over" in held(tmp_path).notes[1]


def test_of_several_that_take_over_a_lock_one_does(tmp_path: Path) -> None:
    write_record(tmp_path, age_s=2 * heartbeat.STALE_S)
    begin, done, holds, refused = threading.Barrier(8), threading.Event(), [], []

    def take() -> None:
        begin.wait()
        try:
            with hold_output(tmp_path) as found:
                holds.append(found)
                done.wait(30)
        except OutputError as error:
            refused.append(str(error))
        if len(refused) == 7:
            done.set()

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(holds), len(refused)) == (1, 7)


def test_a_lock_is_refreshed_and_the_loss_of_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "REFRESH_S", 0.01)
    refreshed, lost = threading.Event(), threading.Event()
    utime = os.utime

    def note(path: Any, *rest: Any) -> None:
        utime(path, *rest)
        refreshed.set()

    with hold_output(tmp_path, on_lost=lambda message: lost.set()):
        monkeypatch.setattr(os, "utime", note)
        assert refreshed.wait(30)
        assert not lost.is_set()
        monkeypatch.setattr(os, "utime", utime)
        write_record(tmp_path)
        assert lost.wait(30)
    assert (tmp_path / HELD_NAME).exists()  # it is not ours


def test_a_child_holds_the_lock_together_with_its_parent_and_after_it(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with hold_output(tmp_path) as found:
            child = stack.enter_context(other_process(tmp_path, found.token))
        assert f"in use by process {child.pid} on" in refusal(tmp_path)
        child.communicate()
        assert not (tmp_path / HELD_NAME).exists()


def test_a_child_whose_parent_has_lost_the_lock_does_not_write(tmp_path: Path) -> None:
    write_record(tmp_path)
    with pytest.raises(OutputError, match="in use by process 7 on elsewhere"), share_output(tmp_path, "another token"):
        pass


def test_a_child_without_a_token_has_inherited_the_lock(tmp_path: Path) -> None:
    with share_output(tmp_path, None):
        assert not (tmp_path / HELD_NAME).exists()


def test_a_process_with_locks_respects_one_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_record(tmp_path)
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert "in use by process 7 on elsewhere" in refusal(tmp_path)
    write_record(tmp_path, age_s=2 * heartbeat.STALE_S)
    assert held(tmp_path).notes == ()
    assert not (tmp_path / HELD_NAME).exists()


def test_the_start_of_a_process_tells_it_from_others() -> None:
    assert process_start(os.getpid()) is not None
    assert process_start(os.getpid()) != process_start(1)
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(child.pid) is None  # it has ended, though nobody has asked how
    child.wait()
    assert process_start(child.pid) is None
