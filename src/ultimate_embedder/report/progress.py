"""Progress: bars on stderr in a terminal (rich), a block in a notebook, else a line on stderr every 15 seconds."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol

from ultimate_embedder import events
from ultimate_embedder.execution import MITIGATIONS
from ultimate_embedder.report.detail import detail_of, level_of_detail
from ultimate_embedder.report.notebook import NotebookBar
from ultimate_embedder.terminal import PACKAGE_LOGGER, counted, encodable, printable, write_line
from ultimate_embedder.types import FieldsUsed

SECONDS_BETWEEN_LINES = 15.0
PROGRESS = (logging.INFO + logging.WARNING) // 2  # the level of what is shown if no level is asked for
SENTENCES = {mitigation.kind: mitigation.sentence for mitigation in MITIGATIONS}


class Bar(Protocol):
    """Shows the progress of several tasks at a time, identified by `key`."""

    def begin(self, key: str, label: str, total: int, done: int) -> None:
        """Start a task; `done` of `total` were done before."""

    def advance(self, key: str, amount: int) -> None:
        """Add to the amount done."""

    def end(self, key: str) -> None:
        """End a task."""

    def wait(self, label: str | None) -> None:
        """Show that something is under way whose length is not known; None: it is over."""

    def say(self, line: str) -> None:
        """Print a line without disturbing the bars."""

    def close(self) -> None:
        """Close all bars."""


class Progress:
    """An event sink that shows progress; a context manager, so that bars are always closed.

    What it says goes to the logger of this package too, if that has a level of its own.
    """

    def __init__(self, bar: Bar, least_level: int = PROGRESS) -> None:
        self._bar = bar
        self._least_level = least_level
        self._log = logging.getLogger(PACKAGE_LOGGER)
        self._mitigated: set[tuple[str | None, str, str | None]] = (
            set()
        )  # each kind is told once; all are in the summary

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._show(self._bar.close)

    def __call__(self, event: events.Event) -> None:
        """Show one event, if it matters for progress."""
        self._show(lambda: self._show_event(event))
        level = level_of_detail(event)
        if level >= self._least_level or self._is_logged(level):
            self._show(lambda: self._say(detail_of(event), level))

    def _show(self, what: Callable[[], None]) -> None:
        """Write, ignoring a closed stderr: it must not stop the run."""
        try:
            what()
        except (OSError, ValueError):  # a closed pipe, a full disk, a closed file
            self._bar = _NoBar()

    def _show_event(self, event: events.Event) -> None:
        bar, name = self._bar, event.collection
        match event:
            case events.RunStarted():
                bar.wait("looking for chunks, models and devices")
            case events.CollectionStarted():
                bar.wait(f"{printable(name or '')}: reading chunks")
            case events.ChunksLoaded():
                bar.wait(None)
                rejected = f", {event.rejected:,} rejected" if event.rejected else ""
                counts = f"{counted(event.loaded, 'chunk')}, {counted(event.distinct_texts, 'distinct text')}{rejected}"
                self._say(f"{name}: {counts}, read in {event.seconds:.1f} s")
                for line in _recognised(event.fields):
                    self._say(f"{name}: {line}")
            case events.ChunksSplit() if event.chunks:
                self._say(f"{name}: {event.chunks} long chunks were split into {event.segments} points")
            case events.ModelResolved() if event.source in ("download", "refresh"):
                note = event.note or f"downloaded at commit {event.revision}"
                bar.end(event.model)
                self._say(f"{event.model}: {note}, {event.size_bytes / 1e6:,.0f} MB in {event.seconds:.1f} s")
            case events.ModelFetchStarted():
                self._begin(event.model, f"downloading {event.model}, kB", event.size_bytes // 1000, 0)
            case events.ModelBytesFetched():
                bar.advance(event.model, event.size_bytes // 1000)
            case events.ModelLoadStarted():
                bar.wait(f"loading {printable(event.model)}")
            case events.ModelLoaded():
                bar.wait(None)
                dims = f"{event.dim} dims" if event.kind == "dense" else f"sparse, {event.dim} words"
                self._say(f"{event.model}: {dims}, {event.dtype}, {event.max_tokens} tokens")
            case events.ModeChosen() if event.mode != "single":
                shares = ", ".join(f"{model} {weight:.2f}" for model, weight in event.weights.items())
                fused = f"; {event.fusion}: {shares}" if len(event.weights) > 1 else ""
                self._say(f"{name}: {event.mode} ({event.why}){fused}")
            case events.Mitigated() if (name, event.kind, event.details.get("model")) not in self._mitigated:
                self._mitigated.add((name, event.kind, event.details.get("model")))
                self._say(f"{name}: {event.details.get('model')}: {SENTENCES.get(event.kind, event.kind)}")
            case events.CompanionPlaced():
                self._say(f"{name}: {event.model} works on {event.device}: {event.why}")
            case events.PassStarted() if event.texts > event.stored_texts:
                label = f"{name} · {event.model} on {', '.join(event.devices)}"
                bar.end(event.model)  # a pass may begin again, or go on after its devices were lost
                self._begin(event.model, label, event.texts, event.stored_texts)
            case events.PassStarted():
                which = f" ({event.model})" if event.weight < 1 else ""
                self._say(f"{name}: reused the vectors of all {event.texts} texts from an earlier run{which}")
            case events.BatchEncoded():
                bar.advance(event.model, event.texts)
            case events.PrecisionChecked():
                cosines = f"{event.mean_cosine:.4f} mean, {event.worst_cosine:.4f} worst"
                self._say(f"{name}: {event.dtype} compared with fp32 on {event.texts} texts: cosine {cosines}")
            case events.PassFinished():
                bar.end(event.model)
            case events.ExportStarted():
                bar.wait(f"{printable(name or '')}: writing {event.kind}")
            case events.ExportWritten():
                bar.wait(None)
            case events.UploadStarted():
                self._begin(event.target, f"{name} → {event.target}", event.points, event.uploaded)
            case events.BatchUploaded():
                bar.advance(event.target, event.points)
            case events.UploadFinished():
                bar.end(event.target)
            case events.ServerChanged():
                self._say(f"{name}: {event.message}")
            case events.GraphBuilding():
                taken = f", {event.seconds:.0f} s so far" if event.seconds >= 1 else ""
                self._say(f"{name}: building the search graph of {event.points} points ({event.graph}){taken}")
            case events.Retried():
                wait = f"{event.wait_seconds:.1f} s"
                self._say(
                    f"cannot {event.what} ({event.reason}), attempt {event.attempt}: retrying in {wait}",
                    logging.WARNING,
                )
            case events.Warned():
                self._say(f"warning: {f'{name}: ' if name else ''}{event.message}", logging.WARNING)
            case events.CollectionFinished() if event.error:
                bar.wait(None)
                self._say(f"{name}: {event.status}: {event.error}", logging.ERROR)
            case _:
                pass

    def _say(self, line: str, level: int = PROGRESS) -> None:
        shown = printable(line, lines=True)
        if self._is_logged(level):
            self._log.log(logging.INFO if level == PROGRESS else level, "%s", shown)
        if level >= self._least_level:
            self._bar.say(shown)

    def _is_logged(self, level: int) -> bool:
        return self._log.level != logging.NOTSET and self._log.isEnabledFor(level)

    def _begin(self, key: str, label: str, total: int, done: int) -> None:
        self._bar.begin(key, printable(label), total, done)


def make_progress(quiet: bool, least_level: int | None = None) -> Progress:
    """Choose the bar by the kind of stderr; messages below `least_level` are not shown.

    `quiet` means no bar, and messages only if a level is asked for.
    """
    return Progress(_make_bar(quiet, least_level), PROGRESS if least_level is None else least_level)


def _make_bar(quiet: bool, least_level: int | None) -> Bar:
    if sys.stderr is None:  # closed by the parent process
        return _NoBar()
    if quiet:
        return _NoBar() if least_level is None else _OnlyLines()
    if in_notebook():
        return NotebookBar()
    return _TerminalBar() if sys.stderr.isatty() else _Lines()


def _recognised(fields: Sequence[FieldsUsed]) -> Iterator[str]:
    """Where text, metadata and ids were found; of several kinds of records, how many there are of each."""
    if all(used.text is None for used in fields):
        return
    for used in fields:
        tool = f" ({used.tool})" if used.tool else ""
        metadata = f", metadata from {used.metadata}" if used.metadata else ""
        ids = f"ids from {used.ids}" if used.ids else "ids made from file and text"
        said = f"text from {used.text}{metadata}, {ids}{tool}" if used.text else "bare strings"
        yield f"{used.records:,} x {said}" if len(fields) > 1 else said


class _NoBar:
    def begin(self, key: str, label: str, total: int, done: int) -> None:
        pass

    def advance(self, key: str, amount: int) -> None:
        pass

    def end(self, key: str) -> None:
        pass

    def wait(self, label: str | None) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def close(self) -> None:
        pass


class _OnlyLines(_NoBar):
    def say(self, line: str) -> None:
        write_line(line, sys.stderr)


class _TerminalBar:
    """Rich progress bars."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._progress = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, tuple[Any, _Pace]] = {}
        self._spinner: Any = None

    def begin(self, key: str, label: str, total: int, done: int) -> None:
        self.wait(None)
        self._progress.start()
        shown = encodable(label, sys.stderr)
        self._tasks[key] = (self._progress.add_task(shown, total=total, completed=done, rate=""), _Pace(done))

    def advance(self, key: str, amount: int) -> None:
        task, pace = self._tasks[key]
        pace.done += amount
        self._progress.update(task, advance=amount, rate=f"{pace.rate():,.0f}/s")

    def end(self, key: str) -> None:
        self._tasks.pop(key, None)
        if not self._tasks:
            self._progress.stop()

    def wait(self, label: str | None) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None
        if label is not None and not self._tasks:  # else a bar is moving already
            from rich.text import Text

            self._spinner = self._progress.console.status(Text(encodable(label, sys.stderr)))
            self._spinner.start()

    def say(self, line: str) -> None:
        shown = encodable(line, sys.stderr)
        self._progress.console.print(shown, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self.wait(None)
        self._progress.stop()


class _Lines:
    """A line at the start, at intervals, and at the end: for pipes, files and CI."""

    def __init__(self) -> None:
        self._tasks: dict[str, tuple[str, int, _Pace]] = {}
        self._last_line_at = 0.0

    def begin(self, key: str, label: str, total: int, done: int) -> None:
        self._tasks[key] = (label, total, _Pace(done))
        self._last_line_at = time.monotonic()
        self.say(f"{label}: {done} of {total}")

    def advance(self, key: str, amount: int) -> None:
        self._tasks[key][2].done += amount
        if time.monotonic() - self._last_line_at >= SECONDS_BETWEEN_LINES:
            for each in self._tasks:
                self._print_progress(each)

    def end(self, key: str) -> None:
        if key in self._tasks:
            self._print_progress(key)
            del self._tasks[key]

    def wait(self, label: str | None) -> None:
        pass

    def say(self, line: str) -> None:
        write_line(line, sys.stderr)

    def close(self) -> None:
        pass

    def _print_progress(self, key: str) -> None:
        label, total, pace = self._tasks[key]
        self._last_line_at = time.monotonic()
        self.say(f"{label}: {pace.done} of {total}, {pace.rate():,.0f}/s")


class _Pace:
    """The amount done, and the rate."""

    def __init__(self, done: int) -> None:
        self.done = self._done_before = done
        self._began = time.monotonic()

    def rate(self) -> float:
        return (self.done - self._done_before) / max(time.monotonic() - self._began, 1e-9)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")  # not imported here: if it is not loaded, this is not a notebook
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config
