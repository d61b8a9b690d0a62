"""Read `events.jsonl`: its events as objects."""

from __future__ import annotations

import dataclasses
import functools
import json
import math

from pydantic import TypeAdapter

from ultimate_embedder import events

LARGEST_LINE = 16 << 20
UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def parse_event(line: bytes) -> events.Event | None:
    """The event in a line; None if it is of a kind that is not known here. Raises one of `UNREADABLE`."""
    fields = json.loads(line, parse_constant=_finite, parse_float=_finite)
    name = fields.pop("event")
    kind = _kinds().get(name)
    if kind is None:
        return None
    known = {each.name for each in dataclasses.fields(kind)}
    fields = {key: value for key, value in fields.items() if key in known}
    if kind is events.RunStarted:
        return events.RunStarted(
            timestamp=_finite(fields["timestamp"]),
            options=None,  # type: ignore[arg-type]
            chunks=str(fields["chunks"]),
            output=str(fields["output"]),
            command=tuple(map(str, fields.get("command") or ())),
        )
    return _adapter(name).validate_python(fields)


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f"{word} is no number")
    return value


@functools.cache
def _kinds() -> dict[str, type[events.Event]]:
    return {kind.__name__: kind for kind in events.Event.__subclasses__()}


@functools.cache
def _adapter(name: str) -> TypeAdapter[events.Event]:
    return TypeAdapter(_kinds()[name])
