"""Read `events.jsonl`: its events as objects, and the summary of a run that was killed before it wrote one.

A log may be damaged, may come from elsewhere, and may be of another version: lines that cannot be read are counted and
left out, unknown events and fields are ignored.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ultimate_embedder import events
from ultimate_embedder.report.summary import SummaryBuilder
from ultimate_embedder.state import read_finite, read_integer
from ultimate_embedder.summary import RunOptions, RunSummary

LARGEST_LINE = 16 << 20
LARGEST_LOG = 256 << 20  # runs condense theirs long before; one with holes can be larger than any disk
LONGEST_INTEGER = 19  # characters: what is longer has more than 64 bits
FIRST_VERSION = 1  # of logs that do not say it
# what an event with odd values may cause where it is used; `ValidationError` is a ValueError
UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


class EventReader:
    """The events of a log, in order. What is wrong with it is known when all were read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damaged_lines = 0
        self.version: int | None = None
        """Of the log; None if it does not begin with the start of a run."""

    @property
    def is_newer(self) -> bool:
        """Whether a later version of this program wrote it, which may mean things that this one does not know."""
        return self.version is not None and self.version > events.EVENTS_VERSION

    def __iter__(self) -> Iterator[events.Event]:
        """Raises `OSError`; a pipe in the place of the log is not read, as that would wait for ever."""
        for line in event_lines(self._path) if _is_file(self._path) else ():
            try:
                event = parse_event(line)
            except UNREADABLE:
                self.damaged_lines += 1
                continue
            if isinstance(event, events.RunStarted) and self.version is None:
                self.version = event.events_version
            if event is not None:
                yield event


def read_event_objects(path: Path) -> Iterator[events.Event]:
    """The events of a log, without what cannot be read. Raises `OSError`."""
    return iter(EventReader(path))


def event_lines(path: Path) -> Iterator[bytes]:
    """The lines of a log; one that is too long to be an event comes in pieces, which cannot be read."""
    with open(path, "rb") as file:
        while file.tell() < LARGEST_LOG and (line := file.readline(LARGEST_LINE)):
            yield line


def parse_event(line: bytes) -> events.Event | None:
    """The event in a line; None if it is of a kind that is not known here. Raises one of `UNREADABLE`."""
    fields = json.loads(line, parse_constant=read_finite, parse_float=read_finite, parse_int=_whole)
    name = fields.pop("event")
    kind = _kinds().get(name)
    if kind is None:
        read_finite(fields["timestamp"])
        return None
    known = {each.name for each in dataclasses.fields(kind)}
    fields = {key: value for key, value in fields.items() if key in known}
    if kind is events.RunStarted:
        return _run_started(fields)
    return _adapter(name).validate_python(fields)


def _whole(word: str) -> int:
    return read_integer(word, LONGEST_INTEGER)


def _run_started(fields: dict[str, Any]) -> events.RunStarted:
    """Its options are in the form of the summary."""
    return events.RunStarted(
        timestamp=read_finite(fields["timestamp"]),
        options=RunOptions.model_validate(fields["options"]),
        chunks=str(fields["chunks"]),
        output=str(fields["output"]),
        command=tuple(map(str, fields.get("command") or ())),
        working_directory=str(fields.get("working_directory", "")),
        events_version=int(fields.get("events_version", FIRST_VERSION)),
    )


@functools.cache
def _kinds() -> dict[str, type[events.Event]]:
    return {kind.__name__: kind for kind in events.Event.__subclasses__()}


@functools.cache
def _adapter(name: str) -> TypeAdapter[events.Event]:
    return TypeAdapter(_kinds()[name])


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def replayed_summary(path: Path) -> RunSummary | None:
    """The summary as it was at the last event; None if there is no event that can be read. Raises `OSError`."""
    builder, start, last = SummaryBuilder(), None, 0.0
    # those of the run are not known: events do not have them
    builder.summary.versions, builder.summary.machine, builder.summary.started_at = {}, {}, ""
    for event in read_event_objects(path):
        start, last = event.timestamp if start is None else start, event.timestamp
        try:
            builder(event)
        except (*UNREADABLE, ValidationError):  # of another run, or without what came before it
            continue
    if start is None:
        return None
    summary = builder.summary
    summary.started_at = _in_words(start)
    summary.seconds = summary.seconds or max(0.0, last - start)
    return summary


def _in_words(timestamp: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(timestamp, datetime.timezone.utc).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""
