"""One writer per output folder."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ultimate_embedder.errors import OutputError
from ultimate_embedder.output import Output


@contextlib.contextmanager
def hold_output(output: Path) -> Iterator[IO[str]]:
    """Lock the output folder for the block. The operating system releases the lock of a process that died.

    A child that inherits the file holds the lock too.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        file = open(Output(output).lock_path, "a+", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        raise OutputError(f"cannot write to {output}: {error.strerror}. Choose another --output.") from error
    with file:
        if not _try_lock(file):
            raise OutputError(f"{output} is in use by {_holder(file)}. Wait until it ends, or choose another --output.")
        try:
            file.seek(0)
            file.truncate()
            json.dump({"pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}, file)
            file.flush()
        except OSError as error:
            raise OutputError(
                f"cannot write to {output}: {error.strerror}. Free disk space, or choose another --output."
            ) from error
        yield file


def _holder(file: IO[str]) -> str:
    file.seek(0)
    try:
        holder = json.loads(file.read())
        return f"process {holder['pid']} since {holder['since']}"
    except (ValueError, KeyError, OSError):
        return "another process"


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[str]) -> bool:
        file.seek(1 << 30)  # beyond the content, which other processes may read
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(file: IO[str]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
