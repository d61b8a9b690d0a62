"""Exit codes and standard streams."""

from __future__ import annotations

import contextlib
import io
import os
import sys

from ultimate_embedder.terminal import CLOSED, discard

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_PARTIAL, EXIT_NOT_CHECKED, EXIT_RUNNING, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
STANDARD_STREAMS = (0, 1, 2)


def open_streams() -> None:
    """Make the standard streams safe to use: none is closed, and each can take any text."""
    for number in STANDARD_STREAMS:  # a file that is opened later would get the number of a closed stream
        try:
            os.fstat(number)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what argparse and libraries print


def close_streams() -> None:
    """Write what is left in their buffers. A reader that has exited does not change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError as error:
            discard(stream)
            if error.errno not in CLOSED:
                raise
