"""Exit codes and standard streams."""

from __future__ import annotations

import os
import sys

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_PARTIAL, EXIT_NOT_CHECKED, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130


def discard_stdout() -> None:
    """Redirect stdout to the null device: its reader has exited, or the disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
