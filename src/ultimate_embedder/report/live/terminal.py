"""The view in a terminal: drawn in place by rich, with lines that scroll above it."""

from __future__ import annotations

import sys
from collections import deque
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleRenderable
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from ultimate_embedder.report.live.layout import Line, bar_for, plain
from ultimate_embedder.report.live.lines import run_lines
from ultimate_embedder.report.live.rows import RunView
from ultimate_embedder.terminal import encodable

EVERY_S = 0.25
LEFT_FREE = 3  # lines of the screen, so that what was said last can be seen


class TerminalScreen:
    """Draws a few times per second. `stream` is stderr, or stdout where the view is what was asked for."""

    def __init__(self, stream: IO[str]) -> None:
        self.every_s: float | None = EVERY_S
        self._stream = stream
        self._console = Console(file=stream)
        self._bars = bar_for(getattr(stream, "encoding", None))
        self._said: deque[str] = deque()
        self._region: _Region | None = None

    def open(self) -> None:
        """Nothing is drawn yet."""

    def begin(self, line: str) -> None:
        """Nothing: it is in the view."""

    def end(self, line: str) -> None:
        """Let a line about it stay."""
        self.say(line)

    def say(self, line: str) -> None:
        """Print it when the view is drawn next: whoever says it does not wait for the terminal."""
        self._said.append(line)

    def draw(self, view: RunView) -> None:
        """Print what was said, and the view below it."""
        lines = run_lines(view, self._console.width - 1, self._bars, self._console.height - LEFT_FREE)
        if self._region is None and lines:
            self._region = _Region(self._console)
            self._region.start()
            self._console.show_cursor(True)  # else it stays hidden where the process is killed
        self._print_said()
        if self._region is not None:
            self._region.show([tuple((encodable(text, self._stream), style) for text, style in line) for line in lines])

    def close(self) -> None:
        """Remove the view."""
        try:
            self._print_said()
        finally:
            if self._region is not None:
                self._region.stop()

    def _print_said(self) -> None:
        while self._said:
            shown = encodable(self._said.popleft(), self._stream)
            self._console.print(shown, markup=False, emoji=False, highlight=False, soft_wrap=True)


class _Region(Live):
    """Lines at the bottom of a terminal that are replaced as a whole, also where it has become narrower meanwhile."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            Text(),
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=_is_terminal(sys.stdout),  # else it may be a file, which gets what is printed there
            vertical_overflow="crop",
        )
        self._widths: list[int] = []
        self._drawn: list[int] = []

    def show(self, lines: list[Line]) -> None:
        """Draw these lines in the place of those before."""
        # an empty line at the end: what is typed meanwhile, such as ^C, is shown there and does not move the others
        text = Text("\n", no_wrap=True, overflow="crop").join(Text.assemble(*line) for line in [*lines, ()])
        self._widths = [cell_len(plain(line)) for line in lines]
        self.update(text, refresh=True)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Go up further where the terminal has wrapped lines that were drawn when it was wider."""
        width = max(1, self.console.width)
        wrapped = sum((size - 1) // width for size in self._drawn if size > width)
        self._drawn = [min(size, width) for size in self._widths]
        renderables = super().process_renderables(renderables)
        up: list[Any] = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)] * wrapped
        return [Control(ControlType.CARRIAGE_RETURN, *up), *renderables] if wrapped else renderables


def _is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and stream.isatty()
