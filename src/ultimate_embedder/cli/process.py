"""Exit codes and standard streams."""

from __future__ import annotations

import contextlib
import io
import os
import sys

from ultimate_embedder.terminal import CLOSED, discard

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_PARTIAL, EXIT_NOT_CHECKED, EXIT_RUNNING, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
STANDARD_STREAMS = (0, 1, 2)

_process_is_ours = False


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


def own_process() -> None:
    """Say that this process was started for a command, and runs nobody else's code."""
    global _process_is_ours
    _process_is_ours = True


class _NoPandas:
    """A finder that says that pandas is not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise for pandas; nothing is known of other modules."""
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)


def use_arrow_without_pandas() -> None:
    """Let pyarrow find no pandas, which it would import to look whether a list is one of its arrays.

    Only in a process that is ours: pyarrow decides once, and a notebook may want its tables as data frames later.
    """
    if not _process_is_ours or "pandas" in sys.modules:
        return
    import pyarrow

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pyarrow.array([""])
    finally:
        sys.meta_path.remove(finder)
