"""Make a long `events.jsonl` shorter: neighbours among what was added up are added up further."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path

from ultimate_embedder import events
from ultimate_embedder.files import atomic_file
from ultimate_embedder.report.replay import UNREADABLE, event_lines, parse_event
from ultimate_embedder.report.roll_up import RolledUp, begin_of, end_of, joined, key_of

ADDED_UP = tuple(
    f'{{"event": "{kind.__name__}"'.encode()
    for kind in (events.BatchesEncoded, events.WindowTokenized, events.ChunksRejected, events.IdsDuplicated)
)
MITIGATED = b'{"event": "Mitigated"'
BATCH = b'{"event": "BatchEncoded"'


def compact(path: Path, most: int) -> int:
    """Write the log anew with about half of `most` events that were added up; gives how many it then has.

    All others stay as they are, and nothing is added up over one that begins or ends something.
    """
    lines = [(line, _added_up(line)) for line in event_lines(path)]
    width = 4 * _seconds([event for _, event in lines if event is not None]) / most
    left = 0
    with atomic_file(path) as file:
        for each in _joined(lines, width):
            left += not isinstance(each, bytes)
            file.write(each if isinstance(each, bytes) else each.as_line())
    return left


def _added_up(line: bytes) -> RolledUp | None:
    """The event in a line, if it is one that can be added to others."""
    if not line.startswith((*ADDED_UP, MITIGATED)):
        return None
    try:
        event = parse_event(line)
    except UNREADABLE:  # it stays as it is
        return None
    if isinstance(event, events.Mitigated):
        return event if event.until is not None else None
    kinds = events.BatchesEncoded | events.WindowTokenized | events.ChunksRejected | events.IdsDuplicated
    return event if isinstance(event, kinds) else None


def _seconds(found: Sequence[RolledUp]) -> float:
    """The time from the first to the last of each key, together."""
    spans: dict[tuple[Hashable, ...], tuple[float, float]] = {}
    for event in found:
        begin, end = spans.get(key_of(event), (begin_of(event), end_of(event)))
        spans[key_of(event)] = min(begin, begin_of(event)), max(end, end_of(event))
    return sum(end - begin for begin, end in spans.values())


def _joined(lines: Iterable[tuple[bytes, RolledUp | None]], width: float) -> Iterator[bytes | RolledUp]:
    pending: dict[tuple[Hashable, ...], RolledUp] = {}
    for line, event in lines:
        if event is None:
            if not line.startswith((BATCH, MITIGATED)):  # these begin and end nothing
                yield from pending.values()
                pending.clear()
            yield line
            continue
        key = key_of(event)
        known = pending.pop(key, None)
        if known is not None and end_of(event) - begin_of(known) > width:
            yield known
            known = None
        pending[key] = event if known is None else joined(known, event)
    yield from pending.values()
