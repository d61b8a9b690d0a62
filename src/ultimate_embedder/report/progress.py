"""Progress on stderr: bars in a terminal (rich) or a notebook (tqdm), else a line every 15 seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol

from ultimate_embedder import events
from ultimate_embedder.execution import MITIGATIONS
from ultimate_embedder.terminal import encodable, printable, write_line
from ultimate_embedder.types import FieldsUsed

SECONDS_BETWEEN_LINES = 15.0
SENTENCES = {mitigation.kind: mitigation.sentence for mitigation in MITIGATIONS}


class Bar(Protocol):
    """Shows the progress of several tasks at a time, identified by `key`."""

    def begin(self, key: str, label: str, total: int, done: int) -> None:
        """Start a task; `done` of `total` were done before."""

    def advance(self, key: str, amount: int) -> None:
        """Add to the amount done."""

    def end(self, key: str) -> None:
        """End a task."""

    def say(self, line: str) -> None:
        """Print a line without disturbing the bars."""

    def close(self) -> None:
        """Close all bars."""


class Progress:
    """An event sink that shows progress; a context manager, so that bars are always closed."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
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

    def _show(self, what: Callable[[], None]) -> None:
        """Write, ignoring a closed stderr: it must not stop the run."""
        try:
            what()
        except (OSError, ValueError):  # a closed pipe, a full disk, a closed file
            self._bar = _NoBar()

    def _show_event(self, event: events.Event) -> None:
        bar, name = self._bar, event.collection
        match event:
            case events.ChunksLoaded():
                rejected = f", {event.rejected} rejected" if event.rejected else ""
                self._say(f"{name}: {event.loaded} chunks in {event.seconds:.1f} s{rejected}")
                for line in _recognised(event.fields):
                    self._say(f"{name}: {line}")
            case events.ModelResolved() if event.source in ("download", "refresh"):
                note = event.note or f"downloaded at commit {event.revision}"
                bar.end(event.model)
                self._say(f"{event.model}: {note}, {event.size_bytes / 1e6:,.0f} MB in {event.seconds:.1f} s")
            case events.ModelFetchStarted():
                self._begin(event.model, f"downloading {event.model}, kB", event.size_bytes // 1000, 0)
            case events.ModelBytesFetched():
                bar.advance(event.model, event.size_bytes // 1000)
            case events.ModelLoaded():
                self._say(f"{event.model}: {event.dim} dims, {event.dtype}, {event.max_tokens} tokens")
            case events.ModeChosen() if event.mode != "single":
                shares = ", ".join(f"{model} {weight:.2f}" for model, weight in event.weights.items())
                self._say(f"{name}: {event.mode} ({event.why}); {event.fusion}: {shares}")
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
                bar.advance(event.model, event.rows)
            case events.PrecisionChecked():
                cosines = f"{event.mean_cosine:.4f} mean, {event.worst_cosine:.4f} worst"
                self._say(f"{name}: {event.dtype} compared with fp32 on {event.texts} texts: cosine {cosines}")
            case events.PassFinished():
                bar.end(event.model)
            case events.UploadStarted():
                self._begin(event.target, f"{name} → {event.target}", event.points, event.uploaded)
            case events.BatchUploaded():
                bar.advance(event.target, event.points)
            case events.UploadFinished():
                bar.end(event.target)
            case events.Retried():
                wait = f"{event.wait_seconds:.1f} s"
                self._say(f"cannot {event.what} ({event.reason}), attempt {event.attempt}: retrying in {wait}")
            case events.Warned():
                self._say(f"warning: {f'{name}: ' if name else ''}{event.message}")
            case events.CollectionFinished() if event.error:
                self._say(f"{name}: {event.status}: {event.error}")
            case _:
                pass

    def _say(self, line: str) -> None:
        self._bar.say(printable(line, lines=True))

    def _begin(self, key: str, label: str, total: int, done: int) -> None:
        self._bar.begin(key, printable(label), total, done)


def make_progress(quiet: bool) -> Progress:
    """Choose the bar by the kind of stderr."""
    if quiet or sys.stderr is None:  # closed by the parent process
        return Progress(_NoBar())
    if _in_notebook():
        return Progress(_NotebookBar())
    if sys.stderr.isatty():
        return Progress(_TerminalBar())
    return Progress(_Lines())


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

    def say(self, line: str) -> None:
        pass

    def close(self) -> None:
        pass


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

    def begin(self, key: str, label: str, total: int, done: int) -> None:
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

    def say(self, line: str) -> None:
        shown = encodable(line, sys.stderr)
        self._progress.console.print(shown, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


class _NotebookBar:
    """tqdm bars, which are widgets if the notebook supports them."""

    def __init__(self) -> None:
        self._bars: dict[str, Any] = {}

    def begin(self, key: str, label: str, total: int, done: int) -> None:
        from tqdm.auto import tqdm

        self._bars[key] = tqdm(desc=encodable(label, sys.stderr), total=total, initial=done, unit=" chunks")

    def advance(self, key: str, amount: int) -> None:
        if key in self._bars:
            self._bars[key].update(amount)

    def end(self, key: str) -> None:
        if key in self._bars:
            self._bars.pop(key).close()

    def say(self, line: str) -> None:
        write_line(line, sys.stderr)

    def close(self) -> None:
        for key in list(self._bars):
            self.end(key)


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


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")  # not imported here: if it is not loaded, this is not a notebook
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config
