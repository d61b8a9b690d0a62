from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ultimate_embedder.errors import OutputError
from ultimate_embedder.lock import Holder, find_holder, hold_output
from ultimate_embedder.output import LOCK_NAME

HOLD = """
import sys, time
from pathlib import Path
from ultimate_embedder.lock import hold_output
with hold_output(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds tmp_path."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def refusal(output: Path) -> str:
    with pytest.raises(OutputError) as caught, hold_output(output):
        pass
    return str(caught.value)


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    since = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    expected = rf"{re.escape(str(tmp_path))} is in use by process {holder.pid} {since}\. "
    assert re.fullmatch(expected + r"Wait until it ends, or choose another --output\.", refusal(tmp_path))


def test_a_refusal_does_not_disturb_the_holder(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    assert refusal(tmp_path) == refusal(tmp_path)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert str(holder.pid) in (tmp_path / LOCK_NAME).read_text()
    with hold_output(tmp_path):
        assert str(os.getpid()) in (tmp_path / LOCK_NAME).read_text()


def test_a_second_run_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with hold_output(tmp_path):
        assert f"is in use by process {os.getpid()} since" in refusal(tmp_path)


def test_the_folder_is_free_after_the_block(tmp_path: Path) -> None:
    for _ in range(2):
        with hold_output(tmp_path):
            pass


def test_the_folder_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), hold_output(tmp_path):
        raise KeyboardInterrupt
    with hold_output(tmp_path):
        pass


def test_the_output_folder_is_made(tmp_path: Path) -> None:
    with hold_output(tmp_path / "new" / "deep"):
        assert (tmp_path / "new" / "deep").is_dir()


def test_different_folders_can_be_held_at_once(tmp_path: Path) -> None:
    with hold_output(tmp_path / "a"), hold_output(tmp_path / "b"):
        pass


def test_an_unreadable_lock_file_still_gives_a_sentence(tmp_path: Path) -> None:
    with hold_output(tmp_path):
        (tmp_path / LOCK_NAME).write_text("not JSON")
        assert "is in use by another process." in refusal(tmp_path)


def test_an_output_below_a_file_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    output = tmp_path / "file" / "out"
    assert refusal(output) == f"cannot write to {output}: Not a directory. Choose another --output."


def test_a_lock_file_that_cannot_be_closed_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = os.close
    told: list[str] = []

    def fail(descriptor: int) -> None:
        close(descriptor)
        if descriptor == held.descriptor:
            raise OSError(errno.EIO, "Input/output error")

    with hold_output(tmp_path, report=told.append) as held:
        monkeypatch.setattr(os, "close", fail)
    assert [message.partition(": ")[2][:18] for message in told] == ["Input/output error"]
    monkeypatch.undo()
    with hold_output(tmp_path):
        pass


# who holds it


def test_the_holder_is_found_and_gone_when_it_is_killed(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    words = find_holder(tmp_path).words
    assert words is not None
    assert words.startswith(f"process {holder.pid} since ")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert find_holder(tmp_path) == Holder(None)


def test_a_copy_is_known_as_such(tmp_path: Path) -> None:
    with hold_output(tmp_path / "out"):
        shutil.copytree(tmp_path / "out", tmp_path / "copy")
        assert find_holder(tmp_path / "copy") == Holder(None, is_copy=True)
    assert find_holder(tmp_path / "out") == Holder(None)
    assert find_holder(tmp_path / "without a lock file") == Holder(None, is_copy=True)


def test_looking_writes_nothing_and_does_not_refuse_a_run_that_begins(tmp_path: Path) -> None:
    with hold_output(tmp_path):
        pass
    before = sorted(tmp_path.iterdir())
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.002):
            find_holder(tmp_path)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(200):
            with hold_output(tmp_path):
                pass
    finally:
        stop.set()
        looking.join()
    assert sorted(tmp_path.iterdir()) == before
