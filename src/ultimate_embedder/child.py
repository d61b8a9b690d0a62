"""Child processes: started by name, spoken to over pipes, and ended with the block that started them.

They are not started with `multiprocessing`, which would import the user's script a second time. A child ends when its
input ends, so that a parent that is killed leaves none behind.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ultimate_embedder.messages import read_message, write_message
from ultimate_embedder.stop import StopSwitch, looking

POLL_S = 0.2  # between two looks at whether the run has to stop
PATIENCE_S = 10.0  # for a child to end when it is not needed any more
LAST_WORDS_BYTES = 4096


class ChildNotStartedError(Exception):
    """The operating system has refused to start a process."""


class Child:
    """A running child."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._last_words = b""
        self._reader: threading.Thread | None = None
        if process.stderr is not None:  # read as it comes: a full pipe would block the child
            self._reader = threading.Thread(target=self._read_errors, name="child-errors", daemon=True)
            self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, message: Any) -> bool:
        """Send a message; False if the child has ended."""
        assert self._process.stdin is not None
        try:
            write_message(self._process.stdin.fileno(), message)
        except BrokenPipeError:
            return False
        return True

    def receive(self) -> Any:
        """The next message of the child; None when it has ended."""
        assert self._process.stdout is not None
        return read_message(self._process.stdout.fileno())

    def kill(self) -> None:
        """End the child at once."""
        self._process.kill()

    def wait(self) -> int:
        """Let the child end, by closing its pipes, and kill it if it does not; gives its exit code."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._reader is not None:
            self._reader.join()
        return self._process.returncode

    @property
    def last_words(self) -> str:
        """The end of what it wrote to standard error, if that was captured; complete after `wait`."""
        return self._last_words.decode("utf-8", "replace").strip()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as errors:
            while part := errors.read(LAST_WORDS_BYTES):
                self._last_words = (self._last_words + part)[-LAST_WORDS_BYTES:]


@contextlib.contextmanager
def start_child(
    module: str,
    *,
    interpreter_options: Sequence[str] = (),
    inherited_files: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    capture_errors: bool = False,
    kill_on_error: bool = False,
) -> Iterator[Child]:
    """Run a module in a new process until the block ends; raises `ChildNotStartedError`.

    `environment` has variables that it gets beside ours.
    """
    try:
        process = subprocess.Popen(
            [sys.executable, *interpreter_options, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if capture_errors else None,
            bufsize=0,
            env={**_environment(), **(environment or {})},
            pass_fds=inherited_files if os.name == "posix" else (),
            # Ctrl-C is for the parent alone, which then decides what becomes of a child whose errors it reads
            start_new_session=capture_errors,
        )
    except OSError as error:
        raise ChildNotStartedError(str(error)) from error
    child = Child(process)
    try:
        yield child
    except BaseException:
        if kill_on_error:
            child.kill()
        raise
    finally:
        child.wait()


@contextlib.contextmanager
def on_stop(stop: StopSwitch, act: Callable[[str], object]) -> Iterator[None]:
    """Act once, with the reason, as soon as the run has to stop during the block."""

    def look() -> bool:
        if stop.reason is None:
            return True
        with contextlib.suppress(OSError, ValueError):  # the child has ended
            act(stop.reason)
        return False

    with looking(look, POLL_S, "pass-on-stop"):
        yield


def _environment() -> dict[str, str]:
    """As ours, with the modules that we can import: a notebook may have added folders."""
    here = str(Path(__file__).resolve().parents[1])
    folders = [path or str(Path.cwd()) for path in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*folders, here])), "PYTHONSAFEPATH": "1"}
