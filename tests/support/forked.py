"""Processes forked from one that has imported everything and computed nothing: quick to start, safe to kill."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.support.tiny_models import Architecture, tiny_model, tiny_splade
from ultimate_embedder.api import run_and_report  # noqa: F401 - imported before the first fork, not after each


class Child:
    """A process of ours."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._status: int | None = None

    def ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status is not None

    def wait(self) -> int:
        while not self.ended():
            time.sleep(0.01)
        return self._status or 0

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self.wait()


def fork(work: Callable[[], int], said: Path) -> Child:
    """Run `work` in a copy of this process, which has imported everything and computed nothing."""
    if pid := os.fork():
        return Child(pid)
    code = 1
    try:
        with open(said, "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            file.write("\n")
            code = work()
    except BaseException:  # noqa: BLE001 - a child must never return into the parent's code
        said.write_text(traceback.format_exc())
    finally:
        os._exit(code)


@functools.cache
def model_of(architecture: Architecture, layers: int) -> Path:
    """A tiny model, made in a child: torch's threads do not survive a fork, so that this process must not start any."""
    # two are told apart by name
    return _made(lambda: tiny_model(architecture, hidden=64, layers=layers), f"{architecture}-{layers}")


@functools.cache
def splade_model() -> Path:
    """A tiny sparse encoder, made in the same way."""
    return _made(tiny_splade, "splade")


def _made(make: Callable[[], Path], name: str) -> Path:
    noted = Path(tempfile.mkdtemp()) / "path.txt"

    def work() -> int:
        made = make()
        noted.write_text(str(made.rename(made.with_name(name))))
        return 0

    assert fork(work, noted.with_name("said.txt")).wait() == 0
    return Path(noted.read_text())
