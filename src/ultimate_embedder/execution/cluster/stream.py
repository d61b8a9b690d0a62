"""Units as a node encodes them: one after the other through one loop, so that no card waits between two of them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ultimate_embedder.events import Event
from ultimate_embedder.execution.batches import EncodedBatch
from ultimate_embedder.execution.cluster.units import OverlongRows, Unit, UnitResult
from ultimate_embedder.execution.pass_events import PassEvents
from ultimate_embedder.execution.windows import Window
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.planning import PassPlan, Rows
from ultimate_embedder.types import PassIdentity
from ultimate_embedder.vectors import row_kind

IDLE_S = 0.02  # how long the loop waits for a unit before it looks after batches that are under way
ALL_ROWS = Rows(0, 1)  # of a stream: how many there will be is not known


class UnitStream:
    """The texts of units as they arrive: a text source that gives None while there are none."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()

    def add(self, unit: Unit) -> None:
        """Encode these texts after those that are waiting."""
        self._waiting.put(unit)

    def close(self) -> None:
        """No more units: the loop ends when it has done those that are waiting."""
        self._waiting.put(None)

    def count(self, rows: Rows) -> int:
        """Some, as long as nobody knows better."""
        return len(rows)

    def read(self, rows: Rows) -> Iterator[tuple[np.ndarray, list[str]] | None]:
        """Yield keys and texts of each unit, which are tokenised together, or None."""
        while True:
            try:
                unit = self._waiting.get(timeout=IDLE_S)
            except queue.Empty:
                yield None
                continue
            if unit is None:
                return
            yield unit.keys, list(unit.texts)


@dataclass
class _OpenUnit:
    """A unit that is being encoded, and what there is of it."""

    unit: Unit
    result: Future[UnitResult]
    began: float = field(default_factory=time.perf_counter)
    rows_done: int = 0
    rows: int | None = None
    """Texts, or segments of them; None before they are tokenised."""
    texts_announced: int = 0
    parts: list[tuple[np.ndarray, Any, np.ndarray]] = field(default_factory=list)
    longest: list[OverlongRows] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    """Told with the result: batches of a unit that is lost do not count."""

    @property
    def texts_received(self) -> int:
        return sum(len(keys) for keys, _, _ in self.parts)

    @property
    def is_done(self) -> bool:
        """Whether all rows are encoded, and the vectors of them have come through the writer's thread."""
        return self.rows_done == self.rows and self.texts_received == self.texts_announced


class UnitCollector:
    """Takes the vectors of a stream, and gives those of a unit when it is complete; may be used from any thread."""

    def __init__(self, join: Callable[[list[Any]], Any], finish: Callable[[UnitResult], UnitResult]) -> None:
        """`join` makes one of several arrays of vectors; `finish` adds to a result what goes with it."""
        self._join = join
        self._finish = finish
        self._open: dict[bytes, _OpenUnit] = {}
        """By key of each of its texts."""
        self._ended: Callable[[_OpenUnit], None] | None = None
        self._lock = OrderedLock("units", Rank.COUNTS)

    def begin(self, unit: Unit) -> Future[UnitResult]:
        """Expect vectors of a unit; gives what its result will be in."""
        opened = _OpenUnit(unit, Future())
        with self._lock:
            ended = self._ended
            if ended is None:
                for key in np.ascontiguousarray(unit.keys):
                    self._open[bytes(key)] = opened
        if ended is not None:
            ended(opened)
        return opened.result

    def append(self, keys: np.ndarray, vectors: Any, overlong: np.ndarray) -> None:
        """Take the vectors of a batch, which is of one unit."""
        if len(keys):
            self._note(keys[0], lambda unit: unit.parts.append((keys, vectors, overlong)))

    def seal(self) -> None:
        """Nothing to do: whoever takes the results makes them durable."""

    def tokenized(self, window: Window) -> None:
        """A unit is tokenised: it is known how many rows it has."""

        def note(unit: _OpenUnit) -> None:
            unit.rows = len(window.texts.rows)

        self._note(window.keys[0], note)

    def encoded(self, encoded: EncodedBatch, window: Window, texts: np.ndarray, events: Sequence[Event]) -> None:
        """A batch is done; the vectors of these texts of the window are on their way."""
        over = window.texts.over[texts]
        beyond = over > 0
        rows = OverlongRows(window.keys[texts][beyond], window.texts.text_tokens[texts][beyond], over[beyond])

        def note(unit: _OpenUnit) -> None:
            unit.rows_done += len(encoded.started.rows)
            unit.texts_announced += len(texts)
            unit.longest += [rows] if len(rows.keys) else []
            unit.events += events

        self._note(window.keys[0], note)

    def end(self, error: BaseException | None, *, too_narrow: tuple[int, int] | None = None) -> None:
        """The loop has ended: whoever waits for a unit gets what there is of it, or the error."""

        def give(unit: _OpenUnit) -> None:
            if error is not None:
                unit.result.set_exception(error)
            else:
                unit.result.set_result(self._result(unit, complete=False, too_narrow=too_narrow))

        with self._lock:
            self._ended = give
            left = list({id(unit): unit for unit in self._open.values()}.values())
            self._open.clear()
        for unit in left:
            give(unit)

    def _note(self, key: np.ndarray, change: Callable[[_OpenUnit], object]) -> None:
        with self._lock:
            unit = self._open.get(bytes(np.ascontiguousarray(key)))
            if unit is None:  # it was given up
                return
            change(unit)
            if not unit.is_done:
                return
            for each in np.ascontiguousarray(unit.unit.keys):
                self._open.pop(bytes(each), None)
        unit.result.set_result(self._result(unit, complete=True))

    def _result(self, unit: _OpenUnit, *, complete: bool, too_narrow: tuple[int, int] | None = None) -> UnitResult:
        keys = [part[0] for part in unit.parts]
        overlong = [part[2] for part in unit.parts]
        done = np.concatenate(keys) if keys else unit.unit.keys[:0]
        result = UnitResult(
            id=unit.unit.id,
            keys=done,
            vectors=self._join([part[1] for part in unit.parts]) if keys else None,
            overlong=np.concatenate(overlong) if overlong else np.empty(0, bool),
            longest=tuple(unit.longest),
            texts=len(unit.unit) if complete else len(done),
            seconds=time.perf_counter() - unit.began,
            events=tuple(unit.events),
            too_narrow=too_narrow,
        )
        return self._finish(result)


class Box(Protocol):
    """Where events wait until the driver asks."""

    def add(self, event: Event) -> None:
        """Keep an event."""
        ...

    def count_batch(self) -> None:
        """Another batch is done."""
        ...


class StreamEvents(PassEvents):
    """The events of a pass on a node: those of a batch go with its unit, all others into the box at once."""

    def __init__(self, plan: PassPlan, collection: str, box: Box, collector: UnitCollector) -> None:
        super().__init__(plan, collection, self._route)
        self._box = box
        self._collector = collector
        self._batch = threading.local()

    def _route(self, event: Event) -> None:
        events: list[Event] | None = getattr(self._batch, "events", None)
        if events is None:
            self._box.add(event)
        else:
            events.append(event)

    def tokenized(self, window: Window) -> None:
        """A unit was tokenised."""
        super().tokenized(window)
        self._collector.tokenized(window)

    def encoded(self, encoded: EncodedBatch, window: Window, texts: np.ndarray) -> None:
        """A batch of a unit is done."""
        self._batch.events = []
        try:
            super().encoded(encoded, window, texts)
        finally:
            events, self._batch.events = self._batch.events, None
        self._box.count_batch()
        self._collector.encoded(encoded, window, texts, events)


def collector_for(identity: PassIdentity, finish: Callable[[UnitResult], UnitResult]) -> UnitCollector:
    """What collects vectors of the kind that a pass makes."""
    return UnitCollector(row_kind(identity).join, finish)
