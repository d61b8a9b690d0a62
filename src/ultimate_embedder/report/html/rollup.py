"""What a drawing needs of `events.jsonl`: read once, line by line, and added up into slices of time.

However long a run was, what is kept has the same size. These are for curves; numbers come from the summary.
"""

from __future__ import annotations

import heapq
import json
import math
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SLICES = 400  # of the time of a run, for memory; a page is hardly wider
BINS = 100  # for throughput and batch sizes: a batch takes longer than 1/400 of most runs
CLOSE = 1 / 200  # of the run: spans of one row with less between them are drawn as one
SLOWEST = 8
MOST_ROWS = 64  # devices, or models of a device; names come from a file, which may be damaged
MOST_SPANS = 4_000
LARGEST_LINE = 16 << 20
TAIL = 1 << 20  # bytes at the end that are searched for the last event
HOST = "host"
CPU = "cpu"  # the device without a ceiling: its events have the memory of the machine there
HOST_EVENTS = {"ChunksLoaded": "read", "ModelLoaded": "load", "ExportWritten": "export"}
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


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


@dataclass
class Pace:
    """The batches of one model: sums, and tokens and rows by bin of time."""

    batches: int = 0
    tokens: int = 0
    rows: int = 0
    tokens_in: list[float] = field(default_factory=lambda: [0.0] * BINS)
    rows_in: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """Fewest, most, sum and number of batches."""


@dataclass(frozen=True, order=True)
class SlowBatch:
    """One of the slowest batches."""

    seconds: float
    at: float
    model: str
    collection: str
    device: str
    rows: int
    longest: int
    tokens: int


@dataclass
class RollUp:
    """The events of a run, added up."""

    start: float
    seconds: float
    ended: bool = False
    damaged_lines: int = 0
    lanes: dict[str, Lane] = field(default_factory=dict)
    paces: dict[str, Pace] = field(default_factory=dict)
    slowest: list[SlowBatch] = field(default_factory=list)
    """A heap while it is filled, then the slowest first."""

    def slice_of(self, at: float, count: int = SLICES) -> int:
        """The slice of time that a moment is in."""
        return max(0, min(count - 1, int(at / self.seconds * count)))


def event_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """The events of a log, in order; None for a line that cannot be read."""
    with open(path, "rb") as file:
        while line := file.readline(LARGEST_LINE):
            yield _parsed(line)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
        return event if isinstance(event["event"], str) and math.isfinite(event["timestamp"]) else None
    except UNREADABLE:
        return None


def is_readable(path: Path) -> bool:
    """Whether there is a log: reading a pipe in its place would wait for ever."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def read_events(path: Path) -> RollUp | None:
    """Add up the events of a run; None if there is not one that can be read. Raises `OSError`."""
    if not is_readable(path) or (first := next((each for each in event_lines(path) if each), None)) is None:
        return None
    seconds = max(0.001, _last_timestamp(path, first["timestamp"]) - first["timestamp"])
    reader = _Reader(RollUp(first["timestamp"], seconds))
    for event in event_lines(path):
        if event is None:
            reader.found.damaged_lines += 1
            continue
        try:
            reader.take(event)
        except UNREADABLE:
            reader.found.damaged_lines += 1
        if reader.found.ended:  # later runs may have added exports
            break
    return reader.finish()


def _last_timestamp(path: Path, otherwise: float) -> float:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = file.read(TAIL).splitlines()
    for line in reversed(lines):
        if (event := _parsed(line)) is not None:
            return float(event["timestamp"])
    return otherwise


class _Reader:
    """Takes events one by one."""

    def __init__(self, found: RollUp) -> None:
        self.found = found
        self._begun: dict[tuple[str, ...], tuple[float, list[str], str]] = {}
        self._spans = 0
        self._handlers: dict[str, Callable[[dict[str, Any], float], None]] = {
            "LeaseAcquired": self._begin,
            "PassStarted": self._begin,
            "LeaseReleased": self._end,
            "PassFinished": self._end,
            "BatchEncoded": self._batch,
            "RunFinished": self._finished,
            **dict.fromkeys(HOST_EVENTS, self._on_host),
        }

    def take(self, event: dict[str, Any]) -> None:
        if handler := self._handlers.get(event["event"]):
            handler(event, event["timestamp"] - self.found.start)

    def finish(self) -> RollUp:
        for (kind, *_, model), (begin, devices, collection) in self._begun.items():
            for device in devices:
                self._add(device, kind, model, Span(begin, self.found.seconds, collection, ended=False))
        self.found.slowest = sorted(self.found.slowest, reverse=True)
        return self.found

    def _lane(self, name: str) -> Lane:
        lanes = self.found.lanes
        return lanes.setdefault(str(name), Lane()) if len(lanes) < MOST_ROWS or name in lanes else Lane()

    def _begin(self, event: dict[str, Any], at: float) -> None:
        kind = "pass" if event["event"] == "PassStarted" else "lease"
        if len(self._begun) < MOST_SPANS:
            key = (kind, str(event["collection"]), str(event["model"]))
            self._begun[key] = (at, list(map(str, event["devices"])), str(event["collection"] or ""))
        self._memory(event.get("memory", []), at)

    def _end(self, event: dict[str, Any], at: float) -> None:
        kind = "pass" if event["event"] == "PassFinished" else "lease"
        known = self._begun.pop((kind, str(event["collection"]), str(event["model"])), None)
        if known is not None:
            begin, devices, collection = known
            for device in devices:
                self._add(device, kind, str(event["model"]), Span(begin, at, collection))
        self._memory(event.get("memory", []), at)

    def _on_host(self, event: dict[str, Any], at: float) -> None:
        what = event.get("model") or event.get("exported", {}).get("kind") or event["collection"]
        self._add(HOST, "pass", HOST_EVENTS[event["event"]], Span(max(0.0, at - event["seconds"]), at, str(what)))

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

    def _memory(self, snapshots: list[dict[str, Any]], at: float, *, peak: bool = False) -> None:
        place = self.found.slice_of(at)
        for each in snapshots:
            lane, outside = self._lane(each["device"]), int(each["external_bytes"]) + int(each["context_bytes"])
            held = int(each["reserved_bytes"]) + outside
            lane.held_bytes[place] = max(held, lane.held_bytes.get(place, 0))
            lane.ceiling_bytes[place] = int(each["ceiling_bytes"])
            if peak:
                lane.peak_bytes[place] = max(int(each["peak_reserved_bytes"]) + outside, lane.peak_bytes.get(place, 0))

    def _batch(self, event: dict[str, Any], at: float) -> None:
        model, device, took = str(event["model"]), str(event["device"]), float(event["forward_seconds"])
        rows, tokens = int(event["rows"]), int(event["tokens"])
        begin = max(0.0, at - took)
        self._memory([event["memory_before"]], begin)
        self._memory([event["memory"]], at, peak=True)
        paces = self.found.paces
        if model in paces or len(paces) < MOST_ROWS:
            self._add_to(paces.setdefault(model, Pace()), begin, at, rows, tokens)
        slow = SlowBatch(took, at, model, str(event["collection"]), device, rows, int(event["longest"]), tokens)
        keep = heapq.heappush if len(self.found.slowest) < SLOWEST else heapq.heappushpop
        keep(self.found.slowest, slow)

    def _add_to(self, pace: Pace, begin: float, at: float, rows: int, tokens: int) -> None:
        pace.batches, pace.tokens, pace.rows = pace.batches + 1, pace.tokens + tokens, pace.rows + rows
        first, last = self.found.slice_of(begin, BINS), self.found.slice_of(at, BINS)
        for place in range(first, last + 1):  # evenly over the time of its forward
            pace.tokens_in[place] += tokens / (last - first + 1)
        fewest, most, total, count = pace.rows_in.get(last, (rows, rows, 0, 0))
        pace.rows_in[last] = (min(fewest, rows), max(most, rows), total + rows, count + 1)

    def _finished(self, event: dict[str, Any], at: float) -> None:
        self.found.ended = True
