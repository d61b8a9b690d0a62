"""Where there is no terminal: a line at the beginning of a task, at intervals, and at the end."""

from __future__ import annotations

from collections.abc import Callable

from ultimate_embedder.report.live.lines import done_of_all, rough
from ultimate_embedder.report.live.rows import Activity, PassRow, RunView
from ultimate_embedder.report.live.screen import NoScreen
from ultimate_embedder.report.live.sentences import devices_in_words

SECONDS_BETWEEN_LINES = 15.0


class OnlyMessages(NoScreen):
    """Lines that are said, and nothing else."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def say(self, line: str) -> None:
        """Print it."""
        self._write(line)


class QuietLines(OnlyMessages):
    """For pipes, files and CI."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(write)
        self.every_s = SECONDS_BETWEEN_LINES

    def begin(self, line: str) -> None:
        """Print it."""
        self._write(line)

    def end(self, line: str) -> None:
        """Print it."""
        self._write(line)

    def draw(self, view: RunView) -> None:
        """A line for each pass and each task that takes long."""
        for row in view.passes:
            if row.state == "running":
                self._write(pass_line(row))
        for work in view.activities:
            if work.seconds >= (self.every_s or 0.0):
                self._write(work_line(work))


def label(row: PassRow) -> str:
    """`docs · minilm on cpu`."""
    return f"{row.collection} · {row.model} on {devices_in_words(row.devices)}"


def pass_line(row: PassRow) -> str:
    """`docs · minilm on cpu: 10 of 50, 12/s, ETA 3 s`."""
    eta = f", ETA {rough(row.eta_seconds)}" if row.eta_seconds is not None else ""
    return f"{label(row)}: {row.done:,} of {row.texts:,}, {row.texts_per_second:,.0f}/s{eta}"


def work_line(work: Activity) -> str:
    """`docs: writing parquet: 40 of 100 points, ETA 3 s`, or for how long it has been going on."""
    if work.share is None:
        return f"{work.words}, {rough(work.seconds)} so far"
    eta = f", ETA {rough(work.eta_seconds)}" if work.eta_seconds is not None else ""
    return f"{work.words}: {done_of_all(work)}{eta}"


def has_work(row: PassRow | Activity) -> bool:
    """Whether there is, or was, anything to do."""
    return row.state != "waiting" and row.texts > row.stored if isinstance(row, PassRow) else True


def begin_line(row: PassRow | Activity) -> str:
    """`docs · minilm on cpu: 0 of 50`."""
    if isinstance(row, PassRow):
        return f"{label(row)}: {row.done:,} of {row.texts:,}"
    return f"{row.words}: {done_of_all(row)}"


def end_line(row: PassRow | Activity) -> str:
    """`docs · minilm on cpu: 50 of 50, 12/s`, with the mean rate."""
    first = row.stored if isinstance(row, PassRow) else row.before
    return f"{begin_line(row)}, {(row.done - first) / max(row.seconds, 1e-9):,.0f}/s"
