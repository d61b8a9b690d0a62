"""What a call from Python shows: downloads, progress if it is wanted, and Python warnings of what matters."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from ultimate_embedder.events import (
    Emit,
    Event,
    ModelBytesFetched,
    ModelFetchStarted,
    ModelResolved,
    PassFinished,
    PassStarted,
    Warned,
    fan_out,
)
from ultimate_embedder.report.progress import make_progress
from ultimate_embedder.terminal import printable

DOWNLOADS = (ModelFetchStarted, ModelBytesFetched, ModelResolved)


class Listener:
    """Hears the events of a call: shows progress if that is wanted, and makes Python warnings of what matters."""

    def __init__(self, progress: bool, *, may_pool: bool = False) -> None:
        self._progress = progress
        self._may_pool = may_pool
        self._limits: dict[str, int | None] = {}
        self._messages: list[str] = []

    @contextlib.contextmanager
    def listening(self) -> Iterator[Emit]:
        """Give a sink of events for the block."""
        with make_progress(quiet=False) as bars:
            yield fan_out([self._note, lambda event: bars(event) if self._is_shown(event) else None])

    def warn(self, stacklevel: int) -> None:
        """Warn of what was heard, at the line of the user that is so many calls away from here."""
        for message in self._messages:
            warnings.warn(printable(message), stacklevel=stacklevel)

    def _is_shown(self, event: Event) -> bool:
        return isinstance(event, DOWNLOADS) or (self._progress and not isinstance(event, Warned))

    def _note(self, event: Event) -> None:
        if isinstance(event, Warned):
            self._messages.append(event.message)
        elif isinstance(event, PassStarted):
            self._limits[event.model] = event.max_tokens
        elif isinstance(event, PassFinished) and event.truncated:
            texts = f"{event.truncated} of {event.stored_chunks} texts are"
            limit = f"{self._limits.get(event.model)} tokens, the limit of {event.model}"
            remedy = " Embedder(overlong='pool') encodes all of a text." if self._may_pool else ""
            self._messages.append(f"{texts} longer than {limit}: the rest of them is not in their vectors.{remedy}")
