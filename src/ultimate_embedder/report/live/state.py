"""`RunState`: the events of a run, folded into rows per device and per pass, and what is under way."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from ultimate_embedder import events
from ultimate_embedder.execution import FRESH_PROCESS
from ultimate_embedder.report.live.activities import Activities
from ultimate_embedder.report.live.device_use import DeviceUse
from ultimate_embedder.report.live.notices import Notices
from ultimate_embedder.report.live.pass_progress import PassProgress
from ultimate_embedder.report.live.recent import LATEST, amount, whole
from ultimate_embedder.report.live.rows import CollectionRow, LeaseRow, RunStatus, RunView
from ultimate_embedder.report.live.sentences import mitigation_words, shown
from ultimate_embedder.types import MemorySnapshot

MOST_DEVICES = 64
MOST_PASSES = 256
MOST_COLLECTIONS = 1000
MOST_LEASES = 64
LONGEST_NAME = 1000
DEVICE_LOST = "device_lost"
INTERRUPTED = "interrupted"  # the error of a run that was ended by a second Ctrl-C
PassKey = tuple[str | None, int]
_OfPass = (
    events.PassStarted | events.WindowTokenized | events.BatchEncoded | events.BatchesEncoded | events.PassFinished
)


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
        self._reached: dict[tuple[str | None, str], float] = {}
        self._handlers: dict[type[events.Event], Callable[[Any], None]] = {
            events.RunStarted: self._run_started,
            events.DeviceOpened: self._device_opened,
            events.CollectionsFound: self._collections_found,
            events.CollectionStarted: self._collection_started,
            events.ChunksRead: self._chunks_read,
            events.ChunksLoaded: self._chunks_loaded,
            events.ChunksSplit: self._chunks_split,
            events.ModelResolved: self._model_resolved,
            events.ModelFetchStarted: self._fetch_started,
            events.ModelBytesFetched: self._bytes_fetched,
            events.ModelLoadStarted: self._load_started,
            events.ModelLoaded: self._loaded,
            events.ModeChosen: self._mode_chosen,
            events.LeaseAcquired: self._lease_acquired,
            events.ModelPlaced: self._model_placed,
            events.LeaseReleased: self._lease_released,
            events.PassStarted: self._pass_started,
            events.WindowTokenized: self._window_tokenized,
            events.BatchEncoded: self._batch_encoded,
            events.BatchesEncoded: self._batches_encoded,
            events.BatchStalled: self._batch_stalled,
            events.PassFinished: self._pass_finished,
            events.VectorsFused: self._vectors_fused,
            events.ExportStarted: self._export_started,
            events.PointsExported: self._points_exported,
            events.GraphBuilding: self._graph_building,
            events.ExportWritten: self._export_written,
            events.CompanionPlaced: self._mitigated,
            events.Mitigated: self._mitigated,
            events.Warned: self._warned,
            events.CollectionSkipped: self._collection_skipped,
            events.CollectionFinished: self._collection_finished,
            events.RunFinished: self._run_finished,
            events.UploadStarted: self._upload_started,
            events.BatchUploaded: self._batch_uploaded,
            events.UploadFinished: self._upload_finished,
        }
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._status: RunStatus = "waiting"
        self._error: str | None = None
        self._started_at: float | None = None
        self._at: float | None = None
        self._about: tuple[str, str, tuple[str, ...]] = ("", "", ())
        self._collections_total: int | None = None
        self._collections: dict[str | None, CollectionRow] = {}
        self._devices: dict[str, DeviceUse] = {}
        self._passes: dict[PassKey, PassProgress] = {}
        self._leases: dict[tuple[str | None, str], LeaseRow] = {}
        self._activities = Activities()
        self._mitigations, self._warnings = Notices(), Notices()
        self._left_out: dict[str, int] = {}

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        if not abs(event.timestamp) < LATEST:  # also where it is not a number
            return
        event = _with_short_names(event)
        if isinstance(event, events.RunStarted):
            self._keep_reached(event)
            self._begin_anew()
        self._at = event.timestamp if self._at is None else max(self._at, event.timestamp)
        if self._started_at is None:
            self._started_at = event.timestamp
        if self._status == "waiting":
            self._status = "running"
        if handler := self._handlers.get(type(event)):
            handler(event)

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
        done = [each for each in self._collections.values() if each.status is not None]
        at_work = {(key[0], each.model) for key, each in self._passes.items() if each.has_work}
        return RunView(
            status=self._status,
            error=self._error,
            started_at=self._started_at,
            at=self._at,
            seconds=max(0.0, moment - self._started_at) if self._started_at is not None else 0.0,
            chunks=chunks,
            output=output,
            command=command,
            collections_total=self._collections_total,
            collections_done=len(done) + self._left_out.get("collections", 0),
            collections=tuple(self._collections.values()),
            devices=tuple(device.row(moment, at_work) for device in self._devices.values()),
            passes=tuple(each.row(moment) for each in self._passes.values()),
            activities=self._activities.rows(moment),
            mitigations=self._mitigations.rows(),
            warnings=self._warnings.rows(),
            leases=tuple(self._leases.values()),
            left_out=dict(self._left_out),
        )

    # the run and its collections

    def _run_started(self, event: events.RunStarted) -> None:
        self._about = (shown(event.chunks), shown(event.output), tuple(map(shown, event.command[:100])))
        self._activities.begin(("starting", None, ""), "looking for chunks, models and devices", event.timestamp)

    def _run_finished(self, event: events.RunFinished) -> None:
        statuses = {each.status for each in self._collections.values()}
        if event.error == INTERRUPTED or (event.error is None and "partial" in statuses):
            self._status = "stopped"
        else:
            self._status = "failed" if event.error is not None or {"failed", None} & statuses else "finished"
        self._error = None if event.error is None else shown(event.error)
        self._activities.end_all()
        self._leases.clear()

    def _collections_found(self, event: events.CollectionsFound) -> None:
        self._collections_total = whole(event.collections)

    def _collection_started(self, event: events.CollectionStarted) -> None:
        self._activities.end_all("starting")
        self._change_collection(event, status=None)
        words = f"{shown(event.collection)}: reading chunks"
        self._activities.begin(("reading", event.collection, ""), words, event.timestamp, "chunks")

    def _chunks_read(self, event: events.ChunksRead) -> None:
        self._activities.move(("reading", event.collection, ""), event.timestamp, done=event.records)

    def _chunks_loaded(self, event: events.ChunksLoaded) -> None:
        self._activities.end(("reading", event.collection, ""))
        self._change_collection(event, chunks=whole(event.loaded), rejected=whole(event.rejected))

    def _chunks_split(self, event: events.ChunksSplit) -> None:
        more = whole(event.segments) - whole(event.chunks)
        known = self._collections.get(event.collection)
        self._change_collection(event, chunks=(known.chunks if known else 0) + max(0, more))

    def _vectors_fused(self, event: events.VectorsFused) -> None:
        self._change_collection(event, points=whole(event.points))
        for key, each in self._passes.items():
            if key[0] == event.collection:
                each.complete()

    def _collection_skipped(self, event: events.CollectionSkipped) -> None:
        self._change_collection(event, chunks=whole(event.embedded), points=whole(event.embedded))

    def _collection_finished(self, event: events.CollectionFinished) -> None:
        error = None if event.error is None else shown(event.error)
        self._change_collection(event, status=str(event.status), error=error)
        self._activities.end_all(collection=event.collection)
        for key, each in self._passes.items():
            if key[0] == event.collection and each.state == "running":
                each.finish(event.timestamp)
        for lease in [lease for lease in self._leases if lease[0] == event.collection]:
            self._release(lease)
        if event.status in ("completed", "skipped_existing") and len(self._collections) > MOST_COLLECTIONS:
            del self._collections[event.collection]
            self._leave_out("collections")

    def _change_collection(self, event: events.Event, **changes: Any) -> None:
        known = self._collections.get(event.collection)
        if known is None and len(self._collections) > 2 * MOST_COLLECTIONS:
            self._leave_out("collections")
            return
        empty = {"status": None, "chunks": 0, "rejected": 0, "points": 0, "error": None}
        fields = {**empty, **({key: getattr(known, key) for key in empty} if known else {}), **changes}
        self._collections[event.collection] = CollectionRow(name=shown(event.collection), **fields)

    # models

    def _fetch_started(self, event: events.ModelFetchStarted) -> None:
        key, words = ("downloading", None, event.model), f"downloading {shown(event.model)}"
        self._activities.begin(key, words, event.timestamp, "bytes", whole(event.size_bytes))

    def _bytes_fetched(self, event: events.ModelBytesFetched) -> None:
        self._activities.move(("downloading", None, event.model), event.timestamp, more=event.size_bytes)

    def _model_resolved(self, event: events.ModelResolved) -> None:
        self._activities.end(("downloading", None, event.model))

    def _load_started(self, event: events.ModelLoadStarted) -> None:
        self._activities.begin(("loading", None, event.model), f"loading {shown(event.model)}", event.timestamp)

    def _loaded(self, event: events.ModelLoaded) -> None:
        self._activities.end(("loading", None, event.model))

    # passes and devices

    def _mode_chosen(self, event: events.ModeChosen) -> None:
        for number, model in enumerate(itertools.islice(event.weights, MOST_PASSES)):
            self._pass(event.collection, model, number)

    def _pass(self, collection: str | None, model: str, number: int) -> PassProgress:
        key = (collection, number)
        if key not in self._passes:
            if len(self._passes) >= MOST_PASSES:
                self._drop_pass()
            self._passes[key] = PassProgress(collection, model, number)
        return self._passes[key]

    def _pass_of(self, event: _OfPass) -> PassProgress:
        return self._pass(event.collection, event.model, event.model_pass)

    def _drop_pass(self) -> None:
        """Forget the first pass that is over, or the first of all."""
        over = [key for key, each in self._passes.items() if each.state == "finished"]
        del self._passes[over[0] if over else next(iter(self._passes))]
        self._leave_out("passes")

    def _keep_reached(self, event: events.RunStarted) -> None:
        """Keep what was reached before another run goes on with it; not if its own events are read once more."""
        before, self._after = self._after, None
        for state in (before, self):
            if state is not None and state.started_at != event.timestamp:
                self._reached |= state._reached | {
                    (key[0], each.fingerprint): each.share
                    for key, each in state._passes.items()
                    if each.fingerprint is not None
                }
        self._reached = dict(list(self._reached.items())[-MOST_PASSES:])

    def _pass_started(self, event: events.PassStarted) -> None:
        current = self._pass_of(event)
        devices = tuple(map(shown, event.devices[:MOST_DEVICES]))
        # of an earlier run what is stored counts; one that begins with nothing begins at nothing
        before = self._reached.get((event.collection, event.fingerprint), 0.0) if event.stored_texts > 0 else 0.0
        reached = max(current.share, before)
        current.begin(event, devices, shown(event.dtype), reached, event.timestamp)

    def _window_tokenized(self, event: events.WindowTokenized) -> None:
        self._pass_of(event).tokenize(event.texts, event.tokens)

    def _batch_encoded(self, event: events.BatchEncoded) -> None:
        took, waited, at = amount(event.forward_seconds), amount(event.wait_seconds), event.timestamp
        begin = min(at, amount(event.began)) if event.began is not None else at - took
        self._pass_of(event).note_batch(event.rows, event.planned_rows, event.padded_tokens)
        self._encoded(event, took, begin, min(at, begin + took))
        if device := self._device(event.device):
            device.wait(waited, begin - waited, begin)

    def _batches_encoded(self, event: events.BatchesEncoded) -> None:
        took, waited, at = amount(event.forward_seconds), amount(event.wait_seconds), event.timestamp
        begin, batches = min(at, amount(event.began)), max(1, whole(event.batches))
        tokens = whole(event.padded_tokens) // batches
        # of many batches the mean is told: what was planned is known of single ones
        rows = whole(event.rows) // batches
        self._pass_of(event).note_batch(rows, rows, tokens)
        self._encoded(event, took, begin, at)
        if device := self._device(event.device):
            device.wait(waited, begin, at)

    def _encoded(
        self, event: events.BatchEncoded | events.BatchesEncoded, took: float, begin: float, end: float
    ) -> None:
        self._pass_of(event).encode(event.texts, event.bad_rows, event.tokens, begin, end)
        if device := self._device(event.device):
            device.work(event.tokens, took, begin, end)
        self._memory(event.memory, peak=True)

    def _batch_stalled(self, event: events.BatchStalled) -> None:
        self._memory(event.memory)

    def _pass_finished(self, event: events.PassFinished) -> None:
        self._pass_of(event).finish(event.timestamp)

    def _device(self, name: str) -> DeviceUse | None:
        if name not in self._devices:
            if len(self._devices) >= MOST_DEVICES:
                self._left_out["devices"] = 1 + self._left_out.get("devices", 0)
                return None
            self._devices[name] = DeviceUse(shown(name))
        return self._devices[name]

    def _memory(self, memory: MemorySnapshot, *, peak: bool = False) -> None:
        if device := self._device(memory.device):
            device.read_memory(memory, peak=peak)

    def _lease_acquired(self, event: events.LeaseAcquired) -> None:
        key = (event.collection, event.model)
        if key in self._leases or len(self._leases) < MOST_LEASES:
            devices = tuple(map(shown, event.devices[:MOST_DEVICES]))
            where = None if event.collection is None else shown(event.collection)
            self._leases[key] = LeaseRow(where, shown(event.model), devices, event.timestamp)
        for name in event.devices[:MOST_DEVICES]:
            if device := self._device(name):
                device.leased_by[key], device.lost = shown(event.model), None
        for memory in event.memory[:MOST_DEVICES]:
            self._memory(memory)

    def _device_opened(self, event: events.DeviceOpened) -> None:
        if device := self._device(event.device):
            device.open(event.ceiling_bytes, shown(event.ceiling_reason))

    def _model_placed(self, event: events.ModelPlaced) -> None:
        for memory in event.memory[:MOST_DEVICES]:
            self._memory(memory)

    def _lease_released(self, event: events.LeaseReleased) -> None:
        self._release((event.collection, event.model))
        for memory in event.memory[:MOST_DEVICES]:
            self._memory(memory)

    def _release(self, key: tuple[str | None, str]) -> None:
        self._leases.pop(key, None)
        for device in self._devices.values():
            device.leased_by.pop(key, None)

    # exports and uploads

    def _export_started(self, event: events.ExportStarted) -> None:
        words = f"{shown(event.collection)}: writing {shown(event.kind)}"
        self._activities.begin(("exporting", event.collection, event.kind), words, event.timestamp, "points")

    def _points_exported(self, event: events.PointsExported) -> None:
        key = ("exporting", event.collection, event.kind)
        self._activities.move(key, event.timestamp, done=event.points, total=event.total)

    def _graph_building(self, event: events.GraphBuilding) -> None:
        key = ("graph", event.collection, event.kind)
        words = f"{shown(event.collection)}: building the search graph of {whole(event.points):,} points"
        if not self._activities.has(key):
            self._activities.end(("exporting", event.collection, event.kind))
            self._activities.begin(key, words, event.timestamp - amount(event.seconds))

    def _export_written(self, event: events.ExportWritten) -> None:
        self._activities.end(("exporting", event.collection, event.exported.kind))
        self._activities.end(("graph", event.collection, event.exported.kind))

    def _upload_started(self, event: events.UploadStarted) -> None:
        key, words = ("uploading", event.collection, event.target), f"{shown(event.collection)} → {shown(event.target)}"
        self._activities.begin(key, words, event.timestamp, "points", whole(event.points), whole(event.uploaded))

    def _batch_uploaded(self, event: events.BatchUploaded) -> None:
        self._activities.move(("uploading", event.collection, event.target), event.timestamp, more=event.points)

    def _upload_finished(self, event: events.UploadFinished) -> None:
        self._activities.end(("uploading", event.collection, event.target))

    # mitigations and warnings

    def _mitigated(self, event: events.Mitigated | events.CompanionPlaced) -> None:
        details = event.details
        model, device = details.get("model"), details.get("device", details.get("after"))
        self._mitigations.add(
            (event.collection, shown(event.kind), shown(model), shown(device)),
            event,
            kind=shown(event.kind),
            words=mitigation_words(event),
            model=None if model is None else shown(model),
            device=shown(device) if isinstance(device, str) else None,
            times=max(1, whole(event.times)) if isinstance(event, events.Mitigated) else 1,
            until=event.until if isinstance(event, events.Mitigated) else None,
        )
        if event.kind == FRESH_PROCESS.kind:  # the one before has no leases any more
            for key in list(self._leases):
                self._release(key)
        if event.kind == DEVICE_LOST and isinstance(device, str) and (known := self._device(device)):
            known.lost = shown(details.get("error") or "it stopped working")

    def _warned(self, event: events.Warned) -> None:
        words = shown(event.message)
        self._warnings.add((event.collection, words), event, kind="warning", words=words)

    def _leave_out(self, what: str) -> None:
        self._left_out[what] = 1 + self._left_out.get(what, 0)


def _with_short_names(event: events.Event) -> events.Event:
    """The event with names that can be kept: in a log from elsewhere they may have any length."""
    names = {"collection": event.collection, "model": getattr(event, "model", None)}
    long: dict[str, Any] = {
        key: name[:LONGEST_NAME] for key, name in names.items() if name and len(name) > LONGEST_NAME
    }
    return dataclasses.replace(event, **long) if long else event
