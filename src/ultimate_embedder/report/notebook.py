"""Progress in a notebook: one block of HTML that is updated in place, and stays short when the notebook is saved."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ultimate_embedder.markup import escaped

SECONDS_BETWEEN_UPDATES = 0.2
MOST_LINES = 50  # then the first are left out; the summary has all warnings
STYLE = "font-family: monospace; font-size: 90%; line-height: 1.6; white-space: pre-wrap"


@dataclass
class _Task:
    label: str
    total: int
    done: int
    before: int
    began: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        seconds = time.monotonic() - self.began
        rate = f"{(self.done - self.before) / max(seconds, 1e-9):,.0f}/s"
        return f"{self.done:,} of {self.total:,}, {rate}, {seconds:.1f} s"

    def bar(self) -> str:
        return f'<progress value="{self.done}" max="{max(self.total, 1)}"></progress>'


class NotebookBar:
    """Lines and bars. It needs no widgets: every notebook shows HTML."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._tasks: dict[str, _Task] = {}
        self._waiting: str | None = None
        self._display: Any = None
        self._updated_at = 0.0

    def begin(self, key: str, label: str, total: int, done: int) -> None:
        """Add a bar."""
        self._tasks[key] = _Task(label, total, done, done)
        self._update()

    def advance(self, key: str, amount: int) -> None:
        """Move a bar on; shown a few times per second."""
        if key in self._tasks:
            self._tasks[key].done += amount
        if time.monotonic() - self._updated_at >= SECONDS_BETWEEN_UPDATES:
            self._update()

    def end(self, key: str) -> None:
        """Replace a bar with a line about it."""
        if key in self._tasks:
            task = self._tasks.pop(key)
            self.say(f"{task.label}: {task}")

    def wait(self, label: str | None) -> None:
        """Show that something is under way whose length is not known; None: it is over."""
        self._waiting = label
        self._update()

    def say(self, line: str) -> None:
        """Add a line."""
        self._lines = [*self._lines, line][-MOST_LINES:]
        self._update()

    def close(self) -> None:
        """End all bars."""
        self._waiting = None
        for key in list(self._tasks):
            self.end(key)

    def _update(self) -> None:
        import IPython.display

        display: Any = IPython.display.display  # not typed
        self._updated_at = time.monotonic()
        if self._display is None:
            self._display = display(self, display_id=True)
        else:
            self._display.update(self)

    def _repr_html_(self) -> str:
        lines = [f"<div>{escaped(line)}</div>" for line in self._lines]
        bars = [f"<div>{escaped(task.label)} {task.bar()} {task}</div>" for task in self._tasks.values()]
        waiting = [f"<div>{escaped(self._waiting)} <progress></progress></div>"] if self._waiting else []
        return f'<div style="{STYLE}">{"".join([*lines, *bars, *waiting])}</div>'

    def __repr__(self) -> str:
        bars = [f"{task.label}: {task}" for task in self._tasks.values()]
        return "\n".join([*self._lines, *bars, *([self._waiting] if self._waiting else [])])
