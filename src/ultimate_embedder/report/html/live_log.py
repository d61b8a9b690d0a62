"""The log of the live page: events as sentences, the latest first. Batches are left out: curves show them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ultimate_embedder import events
from ultimate_embedder.report.detail import INFORMATIVE, detail_of
from ultimate_embedder.report.html.words import duration, size, text
from ultimate_embedder.report.live.sentences import mitigation_words
from ultimate_embedder.terminal import counted

MOST_LINES = 300
MOST_CHARACTERS = 400

Tell = Callable[[Any], str]
SENTENCES: dict[type[events.Event], Tell] = {
    events.RunStarted: lambda event: f"the run begins: {event.chunks} → {event.output}",
    events.ChunksLoaded: lambda event: (
        f"{event.collection}: {counted(event.loaded, 'chunk')} read in {duration(event.seconds)}, "
        f"{counted(event.distinct_texts, 'distinct text')}, {event.rejected:,} rejected"
    ),
    events.ChunksSplit: lambda event: (
        f"{event.collection}: {counted(event.chunks, 'chunk')} split into {counted(event.segments, 'segment')}"
    ),
    events.ModelFetchStarted: lambda event: f"downloading {event.model}, {size(event.size_bytes)}",
    events.ModelMissing: lambda event: f"{event.model} is missing: {event.why}",
    events.ModeChosen: lambda event: f"{event.collection}: mode {event.mode}: {event.why}",
    events.BatchStalled: lambda event: (
        f"{event.collection}: a batch of {event.model} on {event.device} takes {duration(event.seconds)}, "
        f"where {duration(event.expected_seconds)} were expected"
    ),
    events.CompanionPlaced: mitigation_words,
    events.Mitigated: mitigation_words,
    events.Warned: lambda event: f"warning: {event.message}",
    events.CollectionSkipped: lambda event: (
        f"{event.collection}: skipped, as {counted(event.embedded, 'point')} of an earlier run are there"
    ),
    events.RunFinished: lambda event: (
        f"the run has ended after {duration(event.seconds)}{f': {event.error}' if event.error else ''}"
    ),
}
"""What is told in other words than `-v` has for it, or not told there."""


class LiveLog:
    """The latest events, as they are shown."""

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str]] = deque(maxlen=MOST_LINES)
        self._left_out = 0
        self._start: float | None = None

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        self._start = event.timestamp if self._start is None else self._start
        if type(event) in SENTENCES:
            words = SENTENCES[type(event)](event)
        elif isinstance(event, INFORMATIVE):
            words = detail_of(event)
        else:
            return
        self._left_out += len(self._lines) == MOST_LINES
        self._lines.append((event.timestamp, text(words, MOST_CHARACTERS)))

    def draw(self) -> str:
        """The log as HTML."""
        start = self._start or 0.0
        items = "".join(
            f"<li><time>{duration(max(0.0, at - start))}</time><span>{words}</span></li>"
            for at, words in reversed(self._lines)
        )
        more = f"<p>{counted(self._left_out, 'earlier line')} left out.</p>" if self._left_out else ""
        return f'<ul class="log">{items}</ul>{more}' if items else ""
