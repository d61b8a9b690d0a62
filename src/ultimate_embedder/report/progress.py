"""Progress: a live view on stderr in a terminal, a block in a notebook, else a line on stderr every 15 seconds."""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from ultimate_embedder import events
from ultimate_embedder.report.detail import detail_of, level_of_detail
from ultimate_embedder.report.live.notebook import NotebookScreen
from ultimate_embedder.report.live.quiet import OnlyMessages, begin_line, end_line, has_work
from ultimate_embedder.report.live.rows import Activity, PassRow
from ultimate_embedder.report.live.screen import LiveView, NoScreen, Screen
from ultimate_embedder.report.live.sentences import shown
from ultimate_embedder.report.live.streams import make_screen
from ultimate_embedder.report.said import PROGRESS, Speaker
from ultimate_embedder.terminal import PACKAGE_LOGGER, printable, write_line

BEGINNINGS = (events.PassStarted, events.UploadStarted, events.ModelFetchStarted)


class Progress:
    """An event sink that shows progress; a context manager, so that the screen is always left as it was.

    What it says goes to the logger of this package too, if that has a level of its own.
    """

    def __init__(self, screen: Screen, least_level: int = PROGRESS) -> None:
        self._live = LiveView(screen)
        self._speaker = Speaker()
        self._least_level = least_level
        self._log = logging.getLogger(PACKAGE_LOGGER)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.close()

    def __call__(self, event: events.Event) -> None:
        """Take one event, and say what matters of it."""
        ended = self._row_of(event) if isinstance(event, events.PassStarted | events.UploadFinished) else None
        self._live.take(event)
        begun = self._row_of(event) if isinstance(event, BEGINNINGS) else None
        if isinstance(event, events.PassFinished):
            ended = self._row_of(event)
        elif isinstance(ended, PassRow) and ended.state != "running":  # nothing begins again
            ended = None
        with self._live.unharmed():
            if ended is not None and has_work(ended):
                self._live.screen.end(end_line(ended))
            if begun is not None and has_work(begun):
                self._live.screen.begin(begin_line(begun))
        for line, level in self._speaker.lines(event):
            self._say(line, level)
        level = level_of_detail(event)
        if level >= self._least_level or self._is_logged(level):
            self._say(detail_of(event), level)

    def _row_of(self, event: events.Event) -> PassRow | Activity | None:
        """The row that an event is about."""
        view = self._live.view()
        match event:
            case events.PassStarted() | events.PassFinished():
                key = shown(event.collection), event.model_pass
                return next((row for row in view.passes if (row.collection, row.number) == key), None)
            case events.UploadStarted() | events.UploadFinished() | events.ModelFetchStarted():
                return view.activities[-1] if view.activities else None
            case _:
                return None

    def _say(self, line: str, level: int) -> None:
        shown_line = printable(line, lines=True)
        if self._is_logged(level):
            self._log.log(logging.INFO if level == PROGRESS else level, "%s", shown_line)
        if level >= self._least_level:
            with self._live.unharmed():
                self._live.screen.say(shown_line)

    def _is_logged(self, level: int) -> bool:
        return self._log.level != logging.NOTSET and self._log.isEnabledFor(level)


def make_progress(quiet: bool, least_level: int | None = None) -> Progress:
    """Choose the screen by the kind of stderr; messages below `least_level` are not shown.

    `quiet` means no view, and messages only if a level is asked for.
    """
    return Progress(_make_screen(quiet, least_level), PROGRESS if least_level is None else least_level)


def _make_screen(quiet: bool, least_level: int | None) -> Screen:
    if sys.stderr is None:  # closed by the parent process
        return NoScreen()
    if quiet:
        return NoScreen() if least_level is None else OnlyMessages(_write)
    if in_notebook():
        return NotebookScreen()
    return make_screen(sys.stderr, _write)


def _write(line: str) -> None:
    write_line(line, sys.stderr)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")  # not imported here: if it is not loaded, this is not a notebook
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config
