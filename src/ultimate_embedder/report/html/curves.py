"""What a drawing needs of `events.jsonl`: read once, event by event, and added up into slices of time.

However long a run was, what is kept has the same size. These are for curves; numbers come from the summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ultimate_embedder import events
from ultimate_embedder.execution import NODE_LOST
from ultimate_embedder.report.replay import UNREADABLE, EventReader, parse_event
from ultimate_embedder.report.roll_up import began, rolled_up
from ultimate_embedder.types import MemorySnapshot, node_of

Value = TypeVar("Value")

SLICES = 400  # of the time of a run, for memory; a page is hardly wider
BINS = 100  # for throughput and batch sizes: a batch takes longer than 1/400 of most runs
CLOSE = 1 / 200  # of the run: spans of one row with less between them are drawn as one
MOST_ROWS = 64  # devices, or models of a device; names come from a file, which may be damaged
MOST_SPANS = 4_000
TAIL = 1 << 20  # bytes at the end that are searched for the last event
HOST = "host"


@dataclass
class Span:
    """Something that took time on a device or the host, in seconds from the start."""

    begin: float
    end: float
    label: str
    merged: int = 1
    ended: bool = True


@dataclass
class Lane:
    """One device, or the host: rows of spans by model, and memory by slice of time."""

    leases: dict[str, list[Span]] = field(default_factory=dict)
    passes: dict[str, list[Span]] = field(default_factory=dict)
    held_bytes: dict[int, int] = field(default_factory=dict)
    peak_bytes: dict[int, int] = field(default_factory=dict)
    ceiling_bytes: dict[int, int] = field(default_factory=dict)
    tokens_in: list[float] = field(default_factory=lambda: [0.0] * BINS)
    """Tokens by bin of time."""

    def stretch(self) -> None:
        """Let each slice have twice its time."""
        self.held_bytes = _halved(self.held_bytes, max)
        self.peak_bytes = _halved(self.peak_bytes, max)
        self.ceiling_bytes = _halved(self.ceiling_bytes, lambda before, later: later)
        self.tokens_in = _halved_bins(self.tokens_in)


@dataclass
class Pace:
    """The batches of one model: sums, and tokens and rows by bin of time."""

    batches: int = 0
    tokens: int = 0
    rows: int = 0
    tokens_in: list[float] = field(default_factory=lambda: [0.0] * BINS)
    rows_in: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """Fewest, most, sum and number of batches."""

    def stretch(self) -> None:
        """Let each bin have twice its time."""
        self.tokens_in = _halved_bins(self.tokens_in)
        self.rows_in = _halved(
            self.rows_in,
            lambda one, two: (min(one[0], two[0]), max(one[1], two[1]), one[2] + two[2], one[3] + two[3]),
        )


def _halved(values: dict[int, Value], join: Callable[[Value, Value], Value]) -> dict[int, Value]:
    halved: dict[int, Value] = {}
    for place, value in sorted(values.items(), key=lambda item: item[0]):
        halved[place // 2] = join(halved[place // 2], value) if place // 2 in halved else value
    return halved


def _halved_bins(values: list[float]) -> list[float]:
    return [sum(values[2 * place : 2 * place + 2]) for place in range(BINS)]


@dataclass
class Curves:
    """The events of a run, added up."""

    start: float
    seconds: float
    ended: bool = False
    damaged_lines: int = 0
    newer_version: int | None = None
    """Of the log, if a later version of this program wrote it."""
    lanes: dict[str, Lane] = field(default_factory=dict)
    paces: dict[str, Pace] = field(default_factory=dict)
    shown_seconds: float = 0.0
    """What is drawn of `seconds`, the time that all slices have: for a run that goes on."""

    @property
    def axis_seconds(self) -> float:
        """The time that a drawing shows."""
        return self.shown_seconds or self.seconds

    def stretch(self) -> None:
        """Make room for as much time again, with half as many slices for what is there."""
        self.seconds *= 2
        for lane in self.lanes.values():
            lane.stretch()
        for pace in self.paces.values():
            pace.stretch()

    def slice_of(self, at: float, count: int = SLICES) -> int:
        """The slice of time that a moment is in."""
        return max(0, min(count - 1, int(at / self.seconds * count)))


def read_curves(path: Path) -> Curves | None:
    """Add up the events of a run; None if there is not one that can be read. Raises `OSError`."""
    first = next(iter(EventReader(path)), None)
    if first is None:
        return None
    seconds = max(0.001, _last_timestamp(path, first.timestamp) - first.timestamp)
    drawing, reader = Drawing(Curves(first.timestamp, seconds)), EventReader(path)
    odd = 0
    for event in reader:
        try:
            drawing.take(event)
        except UNREADABLE:
            odd += 1
        if drawing.found.ended:  # later runs may have added exports
            break
    found = drawing.finish()
    found.damaged_lines = reader.damaged_lines + odd
    found.newer_version = reader.version if reader.is_newer else None
    return found


def _last_timestamp(path: Path, otherwise: float) -> float:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = file.read(TAIL).splitlines()
    for line in reversed(lines):
        try:
            event = parse_event(line)
        except UNREADABLE:
            continue
        if event is not None:
            return event.timestamp
    return otherwise


@dataclass(frozen=True)
class _Begun:
    """A lease or a pass that has not ended."""

    at: float
    kind: str
    model: str
    devices: list[str]
    collection: str


class Drawing:
    """Takes events one by one."""

    def __init__(self, found: Curves) -> None:
        self.found = found
        self._begun: dict[tuple[Any, ...], _Begun] = {}
        self._spans = 0
        self._handlers: dict[type[events.Event], Callable[[Any, float], None]] = {
            events.LeaseAcquired: self._lease_acquired,
            events.ModelPlaced: lambda event, at: self._memory(event.memory, at, at),
            events.LeaseReleased: self._lease_released,
            events.PassStarted: self._pass_started,
            events.PassFinished: self._pass_finished,
            events.BatchEncoded: self._batch,
            events.BatchesEncoded: self._batches,
            events.Mitigated: self._mitigated,
            events.ChunksLoaded: lambda event, at: self._on_host("read", event.collection, event, at),
            events.ModelLoaded: lambda event, at: self._on_host("load", event.model, event, at),
            events.ExportWritten: lambda event, at: self._on_host("export", event.exported.kind, event, at),
            events.RunFinished: self._finished,
        }

    def take(self, event: events.Event) -> None:
        """Add an event; raises one of `UNREADABLE` if its values are odd."""
        if handler := self._handlers.get(type(event)):
            handler(event, event.timestamp - self.found.start)

    def finish(self) -> Curves:
        """All that was taken; what has begun and not ended is drawn to the end."""
        for each in self._begun.values():
            self._end(each, self.found.axis_seconds, ended=False)
        return self.found

    def _lane(self, name: str) -> Lane:
        lanes = self.found.lanes
        return lanes.setdefault(name, Lane()) if len(lanes) < MOST_ROWS or name in lanes else Lane()

    def _lease_acquired(self, event: events.LeaseAcquired, at: float) -> None:
        self._begin(_lease_key(event), _Begun(at, "lease", event.model, event.devices, event.collection or ""))
        self._memory(event.memory, at, at)

    def _lease_released(self, event: events.LeaseReleased, at: float) -> None:
        if begun := self._begun.pop(_lease_key(event), None):
            self._end(begun, at)
        self._memory(event.memory, at, at)

    def _mitigated(self, event: events.Mitigated, at: float) -> None:
        """A node that is lost releases nothing: its leases end with it."""
        if event.kind != NODE_LOST.kind:
            return
        for key, begun in list(self._begun.items()):
            if begun.kind == "lease" and {node_of(device) for device in begun.devices} == {event.details.get("device")}:
                self._end(self._begun.pop(key), at)

    def _pass_started(self, event: events.PassStarted, at: float) -> None:
        key = ("pass", event.collection, event.model_pass)
        if key not in self._begun:  # else it goes on, after devices were lost
            self._begin(key, _Begun(at, "pass", event.model, event.devices, event.collection or ""))

    def _pass_finished(self, event: events.PassFinished, at: float) -> None:
        if begun := self._begun.pop(("pass", event.collection, event.model_pass), None):
            self._end(begun, at)

    def _begin(self, key: tuple[Any, ...], begun: _Begun) -> None:
        if len(self._begun) < MOST_SPANS:
            self._begun[key] = begun

    def _end(self, begun: _Begun, at: float, *, ended: bool = True) -> None:
        for device in begun.devices:
            self._add(device, begun.kind, begun.model, Span(begun.at, at, begun.collection, ended=ended))

    def _on_host(self, row: str, what: str | None, event: Any, at: float) -> None:
        self._add(HOST, "pass", row, Span(max(0.0, at - event.seconds), at, str(what)))

    def _add(self, lane: str, kind: str, row: str, span: Span) -> None:
        rows = self._lane(lane).passes if kind == "pass" else self._lane(lane).leases
        if row not in rows and len(rows) >= MOST_ROWS:
            return
        spans = rows.setdefault(row, [])
        if spans and span.begin - spans[-1].end < CLOSE * self.found.seconds:
            last = spans[-1]
            last.end, last.merged, last.ended = max(last.end, span.end), last.merged + 1, span.ended
        elif self._spans < MOST_SPANS:
            self._spans += 1
            spans.append(span)

    def _memory(self, snapshots: Iterable[MemorySnapshot], begin: float, end: float, held_bytes: int = 0) -> None:
        for each in snapshots:
            lane = self._lane(each.device)
            held = max(held_bytes, each.reserved_bytes + each.outside_bytes)
            for place in range(self.found.slice_of(begin), self.found.slice_of(end) + 1):
                lane.held_bytes[place] = max(held, lane.held_bytes.get(place, 0))
            lane.ceiling_bytes[self.found.slice_of(end)] = each.ceiling_bytes

    def _batch(self, event: events.BatchEncoded, at: float) -> None:
        begin = began(event) - self.found.start
        self._memory([event.memory_before], begin, begin)
        self._add_batches(rolled_up(event), begin, begin + event.forward_seconds)

    def _batches(self, event: events.BatchesEncoded, at: float) -> None:
        self._add_batches(event, event.began - self.found.start, at)

    def _add_batches(self, event: events.BatchesEncoded, begin: float, end: float) -> None:
        self._memory([event.memory], begin, end, event.held_bytes)
        peaks, place = self._lane(event.memory.device).peak_bytes, self.found.slice_of(end)
        peaks[place] = max(event.peak_held_bytes, peaks.get(place, 0))
        self._add_tokens(self._lane(event.device).tokens_in, begin, end, event.tokens)
        paces = self.found.paces
        if event.model not in paces and len(paces) >= MOST_ROWS:
            return
        pace = paces.setdefault(event.model, Pace())
        pace.batches, pace.tokens = pace.batches + event.batches, pace.tokens + event.tokens
        pace.rows += event.rows
        self._add_tokens(pace.tokens_in, begin, end, event.tokens)
        last = self.found.slice_of(end, BINS)
        fewest, most, total, count = pace.rows_in.get(last, (event.fewest_rows, 0, 0, 0))
        pace.rows_in[last] = (
            min(fewest, event.fewest_rows),
            max(most, event.most_rows),
            total + event.rows,
            count + event.batches,
        )

    def _add_tokens(self, tokens_in: list[float], begin: float, end: float, tokens: int) -> None:
        first, last = self.found.slice_of(begin, BINS), self.found.slice_of(end, BINS)
        for place in range(first, last + 1):  # evenly over the time of the forwards
            tokens_in[place] += tokens / (last - first + 1)

    def _finished(self, event: events.RunFinished, at: float) -> None:
        self.found.ended = True


def _lease_key(event: events.LeaseAcquired | events.LeaseReleased) -> tuple[Any, ...]:
    """By its name; leases of earlier versions have none."""
    return ("lease", event.lease_id) if event.lease_id else ("lease", event.collection, event.model)
