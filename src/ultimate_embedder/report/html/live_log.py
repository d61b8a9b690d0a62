"""The log of the live page: what `embed -v` says of events, the latest first. Batches are in the curves."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator

from ultimate_embedder import events
from ultimate_embedder.report.detail import INFORMATIVE, detail_of
from ultimate_embedder.report.html.words import duration, text
from ultimate_embedder.report.said import Speaker
from ultimate_embedder.terminal import counted

MOST_LINES = 300
MOST_CHARACTERS = 400
STYLES = {logging.WARNING: "look", logging.ERROR: "problem"}


class LiveLog:
    """The latest events, as they are shown."""

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str, str]] = deque(maxlen=MOST_LINES)
        self._left_out = 0
        self._start: float | None = None
        self._speaker = Speaker()

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        self._start = event.timestamp if self._start is None else self._start
        for words, level in self._told(event):
            self._left_out += len(self._lines) == MOST_LINES
            self._lines.append((event.timestamp, text(words, MOST_CHARACTERS), STYLES.get(level, "")))

    def _told(self, event: events.Event) -> Iterator[tuple[str, int]]:
        yield from self._speaker.lines(event)
        match event:
            case events.RunStarted():
                yield f"the run begins: {event.chunks} → {event.output}", logging.INFO
            case events.RunFinished():
                level = logging.ERROR if event.error else logging.INFO
                yield f"the run has ended{f': {event.error}' if event.error else ''}", level
            case _:
                if isinstance(event, INFORMATIVE):
                    yield detail_of(event), logging.INFO

    def draw(self) -> str:
        """The log as HTML."""
        start = self._start or 0.0
        items = "".join(
            f'<li class="{style}"><time>{duration(max(0.0, at - start))}</time><span>{words}</span></li>'
            for at, words, style in reversed(self._lines)
        )
        more = f"<p>{counted(self._left_out, 'earlier line')} left out.</p>" if self._left_out else ""
        return f'<ul class="log">{items}</ul>{more}' if items else ""
