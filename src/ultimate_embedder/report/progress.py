"""Progress on stderr: a bar in a terminal (rich) or a notebook (tqdm), a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Protocol

from ultimate_embedder import events

SECONDS_BETWEEN_LINES = 15.0


class Bar(Protocol):
    """Something that shows how far a piece of work is."""

    def begin(self, label: str, total: int, done: int) -> None:
        """Start a piece of work, `done` of it done before."""

    def advance(self, amount: int) -> None:
        """Some of it is done."""

    def end(self) -> None:
        """All of it is done."""

    def say(self, line: str) -> None:
        """Print a line without disturbing the bar."""

    def close(self) -> None:
        """Leave the screen as a user expects it."""


class Progress:
    """An event sink that tells the user what is going on; a context manager, so that bars always end."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()

    def __call__(self, event: events.Event) -> None:
        """Show one event, if it is one that a user waits for."""
        bar, name = self._bar, event.collection
        match event:
            case events.ChunksLoaded():
                rejected = f", {event.rejected} rejected" if event.rejected else ""
                bar.say(f"{name}: {event.loaded} chunks in {event.seconds:.1f} s{rejected}")
            case events.ModelResolved() if event.source in ("download", "refresh"):
                note = event.note or f"downloaded at commit {event.revision}"
                bar.end()
                bar.say(f"{event.model}: {note}, {event.size_bytes / 1e6:,.0f} MB in {event.seconds:.1f} s")
            case events.ModelFetchStarted():
                bar.begin(f"fetching {event.model}, kB", event.size_bytes // 1000, 0)
            case events.ModelBytesFetched():
                bar.advance(event.size_bytes // 1000)
            case events.ModelLoaded():
                bar.say(f"{event.model}: {event.dim} dims, {event.dtype}, {event.max_tokens} tokens")
            case events.PassStarted() if event.texts > event.stored_texts:
                bar.begin(f"{name} · {event.model} on {', '.join(event.devices)}", event.texts, event.stored_texts)
            case events.PassStarted():
                bar.say(f"{name}: all {event.texts} texts have their vectors from an earlier run")
            case events.BatchEncoded():
                bar.advance(event.rows)
            case events.PassFinished() | events.UploadFinished():
                bar.end()
            case events.UploadStarted():
                bar.begin(f"{name} → {event.target}", event.points, event.uploaded)
            case events.BatchUploaded():
                bar.advance(event.points)
            case events.Retried():
                wait = f"{event.wait_seconds:.1f} s"
                bar.say(f"cannot {event.what} ({event.reason}), attempt {event.attempt}: again in {wait}")
            case events.Warned():
                bar.say(f"warning: {f'{name}: ' if name else ''}{event.message}")
            case events.CollectionFinished() if event.error:
                bar.say(f"{name}: {event.status}: {event.error}")
            case _:
                pass


def make_progress(quiet: bool) -> Progress:
    """Choose the bar that fits where stderr goes."""
    if quiet:
        return Progress(_NoBar())
    if _in_notebook():
        return Progress(_NotebookBar())
    if sys.stderr.isatty():
        return Progress(_TerminalBar())
    return Progress(_Lines())


class _NoBar:
    def begin(self, label: str, total: int, done: int) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def end(self) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def close(self) -> None:
        pass


class _TerminalBar:
    """A rich progress bar."""

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
        self._task: Any = None
        self._started = 0.0
        self._advanced = 0

    def begin(self, label: str, total: int, done: int) -> None:
        self._progress.start()
        self._task = self._progress.add_task(label, total=total, completed=done, rate="")
        self._started, self._advanced = time.monotonic(), 0

    def advance(self, amount: int) -> None:
        self._advanced += amount
        rate = self._advanced / max(time.monotonic() - self._started, 1e-9)
        self._progress.update(self._task, advance=amount, rate=f"{rate:,.0f}/s")

    def end(self) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


class _NotebookBar:
    """A tqdm bar, which draws itself as a widget where the notebook can."""

    def __init__(self) -> None:
        self._bar: Any = None

    def begin(self, label: str, total: int, done: int) -> None:
        from tqdm.auto import tqdm

        self._bar = tqdm(desc=label, total=total, initial=done, unit=" chunks")

    def advance(self, amount: int) -> None:
        if self._bar is not None:
            self._bar.update(amount)

    def end(self) -> None:
        self.close()

    def say(self, line: str) -> None:
        print(line, file=sys.stderr)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class _Lines:
    """A line at the beginning, now and then, and at the end: for pipes, files and CI."""

    def __init__(self) -> None:
        self._label = ""
        self._total = self._done = self._done_before = 0
        self._began = self._spoke = 0.0

    def begin(self, label: str, total: int, done: int) -> None:
        self._label, self._total, self._done, self._done_before = label, total, done, done
        self._began = self._spoke = time.monotonic()
        self.say(f"{label}: {done} of {total}")

    def advance(self, amount: int) -> None:
        self._done += amount
        if time.monotonic() - self._spoke >= SECONDS_BETWEEN_LINES:
            self._speak()

    def end(self) -> None:
        if self._label:
            self._speak()
            self._label = ""

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass

    def _speak(self) -> None:
        self._spoke = time.monotonic()
        rate = (self._done - self._done_before) / max(self._spoke - self._began, 1e-9)
        self.say(f"{self._label}: {self._done} of {self._total}, {rate:,.0f}/s")


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")  # never import it: if it is not loaded, this is no notebook
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config
