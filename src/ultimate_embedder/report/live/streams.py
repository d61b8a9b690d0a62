"""Which screen suits a stream."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO

from ultimate_embedder.report.live.quiet import QuietLines
from ultimate_embedder.report.live.screen import Screen

DUMB = ("dumb", "unknown")  # terminals that cannot move the cursor


def make_screen(stream: IO[str], write: Callable[[str], None]) -> Screen:
    """A view that is drawn in place where the stream is a terminal that can do so, else a line now and then."""
    if not stream.isatty() or os.environ.get("TERM", "").lower() in DUMB:
        return QuietLines(write)
    from ultimate_embedder.report.live.terminal import TerminalScreen  # rich takes a while to import

    return TerminalScreen(stream)
