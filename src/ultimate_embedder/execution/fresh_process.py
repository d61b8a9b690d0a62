"""Go on in a fresh process: a card that is lost to this one may well work in another.

The child is started by name, not with `multiprocessing`, which would import the user's script a second time. It reads
what it has to do from its standard input and writes events to its standard output, as pickles with their length in
front. This process keeps the lock of the output, hands the open file on, and passes requests to stop on.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ultimate_embedder.config import RunConfig
from ultimate_embedder.devices import environment_for_child
from ultimate_embedder.events import Emit, Event
from ultimate_embedder.stop import StopSwitch

CHILD = "ultimate_embedder.continued"
LENGTH_BYTES = 8
POLL_S = 0.2  # between two looks at whether the run has to stop
PATIENCE_S = 10.0  # for the child to end when it is not needed any more


@dataclass(frozen=True)
class Continuation:
    """What a fresh process has to do: these collections, on the devices of the options."""

    config: RunConfig
    collections: tuple[str, ...]
    deaths: Mapping[str, int]
    """How often each device has died so far."""


@dataclass(frozen=True)
class Ended:
    """How a fresh process has ended: devices that were lost to it, and what prevented it from working at all."""

    lost: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


def run_in_fresh_process(work: Continuation, emit: Emit, stop: StopSwitch, lock_file: int | None) -> Ended:
    """Run a child to its end, with its events as ours. `lock_file` stays open in it, and so does the lock."""
    inherited = [lock_file] if lock_file is not None and os.name == "posix" else []
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=_environment(),
            pass_fds=inherited,
        )
    except OSError as error:
        return Ended(error=f"it cannot be started: {error}")
    with _ended_afterwards(child), _stop_passed_on(child, stop):
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            write_message(child.stdin.fileno(), work)
        while (message := read_message(child.stdout.fileno())) is not None:
            if isinstance(message, Ended):
                return message
            if isinstance(message, Event):
                emit(message)
    return Ended(error=f"it ended with exit code {child.returncode}")


def write_message(file: int, message: Any) -> None:
    """Send an object to the other process."""
    content = pickle.dumps(message)
    left = memoryview(len(content).to_bytes(LENGTH_BYTES, "big") + content)
    while left:
        left = left[os.write(file, left) :]


def read_message(file: int) -> Any:
    """The next object that the other process has sent; None when it has ended."""
    length = _read(file, LENGTH_BYTES)
    content = _read(file, int.from_bytes(length, "big")) if length else b""
    return pickle.loads(content) if content else None


def _read(file: int, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = os.read(file, size - len(content))
        if not part:
            return b""
        content += part
    return content


def _environment() -> dict[str, str]:
    """As ours, with the modules that we can import: a notebook may have added folders."""
    folders = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return {**os.environ, **environment_for_child(), "PYTHONPATH": folders, "PYTHONSAFEPATH": "1"}


@contextlib.contextmanager
def _ended_afterwards(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave no child behind: it stops when its input ends, and is killed if it does not."""
    try:
        yield
    finally:
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextlib.contextmanager
def _stop_passed_on(child: subprocess.Popen[bytes], stop: StopSwitch) -> Iterator[None]:
    over = threading.Event()

    def pass_on() -> None:
        while not over.wait(POLL_S):
            if stop.reason is not None and child.stdin is not None:
                with contextlib.suppress(OSError, ValueError):  # it has ended
                    write_message(child.stdin.fileno(), stop.reason)
                return

    thread = threading.Thread(target=pass_on, name="pass-on-stop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
