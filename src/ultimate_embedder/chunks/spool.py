"""Files for what a run is given and is none: standard input, data in memory. So it can be read again."""

from __future__ import annotations

import os
import queue
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ultimate_embedder.chunks.formats import guess_suffix
from ultimate_embedder.chunks.memory import write_in_memory
from ultimate_embedder.config import STDIN, FieldChoice, InMemory, Input
from ultimate_embedder.errors import OutputError, UsageError
from ultimate_embedder.files import temporary_path

FOLDER = "input"
STDIN_NAME = "stdin"
BLOCK_BYTES = 1 << 20
WAITING_BLOCKS = 4
CHECK_S = 0.2
TERMINAL = (
    "CHUNKS is -, and standard input is a terminal. Pipe chunks into it: cat a.jsonl | ultimate-embedder embed - ..."
)


@contextmanager
def spooled(
    inputs: Iterable[Input], output: Path, check: Callable[[], None], choice: FieldChoice | None = None
) -> Iterator[tuple[Path, ...]]:
    """The inputs as paths, of files in `output` where they are none yet; these are deleted at the end.

    `check` is called while input is awaited, and raises if the run must stop.
    """
    given = list(inputs)
    if all(isinstance(each, Path) and each != STDIN for each in given):
        yield tuple(each for each in given if isinstance(each, Path))
        return
    folder = temporary_path(output / FOLDER)
    try:
        folder.mkdir(parents=True)
        yield tuple(_on_disk(each, folder, check, choice) for each in given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _on_disk(given: Input, folder: Path, check: Callable[[], None], choice: FieldChoice | None) -> Path:
    try:
        if isinstance(given, InMemory):
            return write_in_memory(given.data, folder, check, choice)
        return _write_stdin(folder, check) if given == STDIN else given
    except OSError as error:
        raise OutputError(f"the chunks cannot be written to {folder.parent}: {error.strerror or error}.") from error


def _write_stdin(folder: Path, check: Callable[[], None]) -> Path:
    stdin = getattr(sys.stdin, "buffer", None)
    if stdin is None:
        raise UsageError("CHUNKS is -, and this process has no standard input.")
    if stdin.isatty():
        raise UsageError(TERMINAL)
    path = folder / STDIN_NAME
    with open(path, "wb") as file:
        for block in _blocks(stdin, check):
            file.write(block)
    if not path.stat().st_size:
        raise UsageError("CHUNKS is -, and standard input is empty.")
    return path.rename(path.with_suffix(guess_suffix(path)))


def _blocks(stdin: BinaryIO, check: Callable[[], None]) -> Iterator[bytes]:
    """Yield what arrives; another thread waits for it, as a read that waits cannot be stopped."""
    arrived: queue.Queue[bytes | OSError] = queue.Queue(WAITING_BLOCKS)
    next_block = _reader(stdin)

    def read() -> None:
        try:
            while block := next_block(BLOCK_BYTES):
                arrived.put(block)
        except OSError as error:
            arrived.put(error)
        arrived.put(b"")

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while True:
        check()
        try:
            block = arrived.get(timeout=CHECK_S)
        except queue.Empty:
            continue
        if isinstance(block, OSError):
            raise UsageError(f"standard input cannot be read: {block.strerror}.") from block
        if not block:
            return
        yield block


def _reader(stdin: BinaryIO) -> Callable[[int], bytes]:
    try:
        # not its own buffer: a thread that waits within it cannot be left behind when the process ends
        return partial(os.read, stdin.fileno())
    except OSError:  # what stands in for standard input has no file
        return stdin.read
