"""The view in a notebook: one block of HTML that is updated in place, and stays short when the notebook is saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ultimate_embedder.markup import escaped
from ultimate_embedder.report.live.layout import plain
from ultimate_embedder.report.live.lines import done_of_all, heading, memory_words, percent, rough
from ultimate_embedder.report.live.rows import Activity, DeviceRow, PassRow, RunView
from ultimate_embedder.report.live.sentences import devices_in_words
from ultimate_embedder.types import by_node

EVERY_S = 0.5
MOST_LINES = 50  # then the first are left out; the summary has all warnings
MOST_ROWS = 16
STYLE = "font-family: monospace; font-size: 90%; line-height: 1.6; white-space: pre-wrap"
CELL = "text-align: left; padding: 0 1em 0 0; background: none; border: none; white-space: nowrap"


class NotebookScreen:
    """Lines, and a table of devices, passes and tasks below. It needs no widgets: every notebook shows HTML."""

    def __init__(self) -> None:
        self.every_s: float | None = EVERY_S
        self._lines: list[str] = []
        self._view: RunView | None = None
        self._display: Any = None

    def open(self) -> None:
        """Claim a place in the output of the cell."""
        self._update()

    def begin(self, line: str) -> None:
        """Nothing: it is in the view."""

    def end(self, line: str) -> None:
        """Let a line about it stay."""
        self.say(line)

    def say(self, line: str) -> None:
        """Add a line, which is shown with the next view."""
        self._lines = [*self._lines, line][-MOST_LINES:]

    def draw(self, view: RunView) -> None:
        """Show another view."""
        self._view = view
        self._update()

    def close(self) -> None:
        """Leave the lines."""
        self._view = None
        if self._lines or self._display is not None:
            self._update()

    def _update(self) -> None:
        import IPython.display

        display: Any = IPython.display.display  # not typed
        if self._display is None:
            self._display = display(self, display_id=True)
        else:
            self._display.update(self)

    def _repr_html_(self) -> str:
        lines = "".join(f"<div>{escaped(line)}</div>" for line in self._lines)
        return f'<div style="{STYLE}">{lines}{_view(self._view) if self._view else ""}</div>'

    def __repr__(self) -> str:
        return "\n".join(self._lines)


def _view(view: RunView) -> str:
    title = "".join(f"<div><b>{escaped(plain(line))}</b></div>" for line in heading(view))
    passes = [each for each in view.passes if each.state != "finished"]
    rows = [
        *map(_device, sorted(view.devices, key=lambda row: by_node(row.name))[:MOST_ROWS]),
        *map(_pass, passes[:MOST_ROWS]),
        *map(_work, view.activities[:MOST_ROWS]),
    ]
    return f'{title}<table style="border: none">{"".join(map(_row, rows))}</table>' if rows else title


def _row(cells: Sequence[str]) -> str:
    inner = "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells)
    return f"<tr>{inner}</tr>"


def _bar(value: float) -> str:
    return f'<progress value="{value:.4f}" max="1"></progress>'


def _device(device: DeviceRow) -> list[str]:
    held, ceiling = device.held_bytes, device.ceiling_bytes
    if device.lost is not None or held is None or not ceiling:
        return [escaped(device.name), "", "lost" if device.lost is not None else "", "", "", ""]
    idle = "" if device.idle_share is None else f"idle {percent(device.idle_share)}"
    memory, rate = memory_words(held, ceiling), f"{device.tokens_per_second:,.0f} tokens/s"
    return [escaped(device.name), _bar(min(1.0, held / ceiling)), memory, rate, idle, ""]


def _pass(row: PassRow) -> list[str]:
    name = escaped(f"{row.model} on {devices_in_words(row.devices)}" if row.devices else row.model)
    if row.state == "waiting":
        return [name, "", "waiting", "", "", ""]
    again = f", begun again in {escaped(row.dtype)}" if row.restarts else ""
    counts = f"{percent(row.share)}, {row.done:,} of {row.texts:,} texts{again}"
    batch = f"batch {row.batch_rows:,}" if row.batch_rows else ""
    return [name, _bar(row.share), counts, f"{row.tokens_per_second:,.0f} tokens/s", batch, _eta(row.eta_seconds)]


def _work(work: Activity) -> list[str]:
    if work.share is None:
        return [escaped(work.words), "<progress></progress>", rough(work.seconds), "", "", ""]
    return [escaped(work.words), _bar(work.share), escaped(done_of_all(work)), "", "", _eta(work.eta_seconds)]


def _eta(seconds: float | None) -> str:
    return f"ETA {rough(seconds)}" if seconds is not None else ""
