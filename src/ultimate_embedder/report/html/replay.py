"""The summary of a run that was killed before it wrote one: its events are given to the summary builder once more."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ultimate_embedder import events
from ultimate_embedder.report.html.rollup import UNREADABLE, event_lines, is_readable
from ultimate_embedder.report.summary import SummaryBuilder
from ultimate_embedder.summary import RunOptions, RunSummary


def replayed_summary(path: Path) -> RunSummary | None:
    """The summary as it was at the last event; None if there is no event that can be read. Raises `OSError`."""
    builder, start, last = SummaryBuilder(), None, 0.0
    # those of the run are not known: events do not have them
    builder.summary.versions, builder.summary.machine, builder.summary.started_at = {}, {}, ""
    for event in event_lines(path) if is_readable(path) else ():
        if event is None:
            continue
        if start is None:
            start = event["timestamp"]
        last = event["timestamp"]
        try:
            _give(event, builder)
        except (*UNREADABLE, ValidationError):  # counted where curves are read
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


def _give(event: dict[str, Any], builder: SummaryBuilder) -> None:
    name = event.pop("event")
    if name == events.RunStarted.__name__:  # its options are in the form of the summary
        options = RunOptions.model_validate(event["options"])
        builder.summary.options, builder.summary.dry_run = options, options.dry_run
        builder.summary.chunks, builder.summary.output = str(event["chunks"]), str(event["output"])
        builder.summary.command = list(map(str, event.get("command") or ()))
    elif (kind := _kinds().get(name)) is not None:
        known = {each.name for each in dataclasses.fields(kind)}
        builder(_adapter(name).validate_python({key: value for key, value in event.items() if key in known}))


@functools.cache
def _kinds() -> dict[str, type[events.Event]]:
    return {kind.__name__: kind for kind in events.Event.__subclasses__()}


@functools.cache
def _adapter(name: str) -> TypeAdapter[events.Event]:
    return TypeAdapter(_kinds()[name])
