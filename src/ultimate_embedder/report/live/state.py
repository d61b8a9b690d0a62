"""`RunState`: the events of a run, folded into rows per device and per pass, and what is under way."""

from __future__ import annotations

import dataclasses
from typing import Any

from ultimate_embedder import events
from ultimate_embedder.report.live.collection_rows import Collections
from ultimate_embedder.report.live.devices import Devices
from ultimate_embedder.report.live.nodes import Nodes
from ultimate_embedder.report.live.notices import Mitigations, Warnings
from ultimate_embedder.report.live.passes import Passes, Reached
from ultimate_embedder.report.live.recent import LATEST
from ultimate_embedder.report.live.rows import RunStatus, RunView
from ultimate_embedder.report.live.sentences import shown
from ultimate_embedder.report.live.under_way import UnderWay

LONGEST_NAME = 1000
BATCHES = (events.BatchEncoded, events.BatchesEncoded)
INTERRUPTED = "interrupted"  # the error of a run that was ended by a second Ctrl-C


class RunState:
    """A fold of typed events: call it with each event, then ask for `view()` or `as_dict()`.

        state = RunState()
        for event in read_event_objects(path):   # or as an event sink of a run: `emit` calls it
            state(event)
        state.view()                # rows as frozen dataclasses, see `rows.py`
        json.dumps(state.as_dict(time.time()))   # the same as plain data

    It has no clock: times are those of the events, and `view(now)` takes the moment to look at, for a run that is going
    on (rates fall and times grow while nothing happens); the default is the latest event. It takes `BatchEncoded` and
    `BatchesEncoded` alike. A `RunStarted` begins it anew. Shares never go back, also over the end of a run that is
    resumed. Whatever values events have it does not raise, and lists are bounded. Not thread-safe: who calls it from
    one thread and looks from another has a lock.
    """

    def __init__(self, after: RunState | None = None) -> None:
        """`after` is the state of a run that this one may go on with: what it has reached is not lost."""
        self._after = after
        self._begin_anew({})

    def _begin_anew(self, reached: Reached) -> None:
        self._status: RunStatus = "waiting"
        self._error: str | None = None
        self._started_at: float | None = None
        self._at: float | None = None
        self._about: tuple[str, str, tuple[str, ...]] = ("", "", ())
        self._collections, self._under_way = Collections(), UnderWay()
        self._devices, self._nodes, self._passes = Devices(), Nodes(), Passes(reached)
        self._mitigations, self._warnings = Mitigations(), Warnings()
        self._parts = (
            self._collections,
            self._under_way,
            self._devices,
            self._nodes,
            self._passes,
            self._mitigations,
            self._warnings,
        )

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        if not abs(event.timestamp) < LATEST:  # also where it is not a number
            return
        event = _with_short_names(event)
        if isinstance(event, events.RunStarted):
            self._begin_anew(self._reached_before(event))
            self._about = (shown(event.chunks), shown(event.output), tuple(map(shown, event.command[:100])))
        self._at = event.timestamp if self._at is None else max(self._at, event.timestamp)
        if self._started_at is None:
            self._started_at = event.timestamp
        if self._status == "waiting":
            self._status = "running"
        # batches are by far the most: the other parts have nothing to do with them
        parts = (self._devices, self._passes) if isinstance(event, BATCHES) else self._parts
        for part in parts:
            part(event)
        if isinstance(event, events.RunFinished):
            self._finish(event)

    @property
    def status(self) -> RunStatus:
        """How the run is, as far as its events tell."""
        return self._status

    @property
    def started_at(self) -> float | None:
        """When the run began; None before that."""
        return self._started_at

    def as_dict(self, now: float | None = None) -> dict[str, Any]:
        """`view(now)` as plain JSON data."""
        return self.view(now).as_dict()

    def view(self, now: float | None = None) -> RunView:
        """The run at the moment `now`, by default that of its latest event."""
        at = self._at if self._at is not None else 0.0
        over = self._status not in ("waiting", "running")
        moment = at if now is None or over else max(at, now)
        chunks, output, command = self._about
        left_out = {
            "collections": self._collections.left_out,
            "devices": self._devices.left_out,
            "nodes": self._nodes.left_out,
            "passes": self._passes.left_out,
        }
        return RunView(
            status=self._status,
            error=self._error,
            started_at=self._started_at,
            at=self._at,
            seconds=max(0.0, moment - self._started_at) if self._started_at is not None else 0.0,
            chunks=chunks,
            output=output,
            command=command,
            collections_total=self._collections.total,
            collections_done=self._collections.done(),
            collections=self._collections.rows(),
            devices=self._devices.rows(moment, self._passes.at_work()),
            nodes=self._nodes.rows(),
            passes=self._passes.rows(moment),
            activities=self._under_way.rows(moment),
            mitigations=self._mitigations.rows(),
            warnings=self._warnings.rows(),
            leases=self._devices.leases(),
            left_out={what: count for what, count in left_out.items() if count},
        )

    def _reached_before(self, event: events.RunStarted) -> Reached:
        """What was reached before another run goes on with it; nothing if its own events are read once more."""
        before, self._after = self._after, None
        found: Reached = {}
        for state in (before, self):
            if state is not None and state.started_at != event.timestamp:
                found |= state._passes.reached()
        return found

    def _finish(self, event: events.RunFinished) -> None:
        statuses = self._collections.statuses
        if event.error == INTERRUPTED or (event.error is None and "partial" in statuses):
            self._status = "stopped"
        else:
            self._status = "failed" if event.error is not None or {"failed", None} & statuses else "finished"
        self._error = None if event.error is None else shown(event.error)


def _with_short_names(event: events.Event) -> events.Event:
    """The event with names that can be kept: in a log from elsewhere they may have any length."""
    names = {"collection": event.collection, "model": getattr(event, "model", None)}
    long: dict[str, Any] = {
        key: name[:LONGEST_NAME] for key, name in names.items() if name and len(name) > LONGEST_NAME
    }
    return dataclasses.replace(event, **long) if long else event
