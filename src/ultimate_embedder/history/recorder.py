"""Event sinks that note how long passes and stages take."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ultimate_embedder import events
from ultimate_embedder.history import stages
from ultimate_embedder.history.file import PassRecord, StageRecord, add_to_history, model_key
from ultimate_embedder.machine import processor_name
from ultimate_embedder.types import DeviceFacts

SHORTEST = 8  # tokens: lengths are counted by powers of two from here


@dataclass
class _Pass:
    """What batches of a pass took so far, by length: padded tokens and seconds."""

    by_length: dict[int, tuple[int, float]] = field(default_factory=dict)
    texts: int = 0
    tokens: int = 0
    places: set[tuple[str, str]] = field(default_factory=set)
    """Devices and number formats that batches were computed in."""

    def add(self, event: events.BatchEncoded) -> None:
        length = max(SHORTEST, 1 << (event.longest - 1).bit_length())
        tokens, seconds = self.by_length.get(length, (0, 0.0))
        self.by_length[length] = tokens + event.padded_tokens, seconds + event.forward_seconds
        self.texts += event.texts
        self.tokens += event.tokens
        self.places.add((event.device, event.dtype))


class PassRecorder:
    """Makes a `PassRecord` of the events of each pass that computed something on devices of one kind."""

    def __init__(self, record: Callable[[PassRecord], None], runtime: str = "torch") -> None:
        self._record = record
        self._devices: dict[str, DeviceFacts] = {}
        self._models: dict[str, str] = {}
        self._passes: dict[tuple[str | None, int], _Pass] = {}
        self.runtime = runtime

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        if isinstance(event, events.DevicesOpened):
            self._devices = {device.name: device for device in event.devices}
        elif isinstance(event, events.ModelResolved):
            self._models[event.model] = model_key(event.model, event.hub_id, event.digest)
        elif isinstance(event, events.PassStarted):
            self._passes[event.collection, event.model_pass] = _Pass()
        elif isinstance(event, events.BatchEncoded):
            self._passes.setdefault((event.collection, event.model_pass), _Pass()).add(event)
        elif isinstance(event, events.PassFinished):
            self._finish(self._passes.pop((event.collection, event.model_pass), _Pass()), event)

    def key_of(self, model: str) -> str | None:
        """What a model of the run is known by."""
        return self._models.get(model)

    def _finish(self, done: _Pass, event: events.PassFinished) -> None:
        devices = [self._devices.get(name) for name, _ in done.places]
        hardware = {device.hardware for device in devices if device is not None}
        formats = {dtype for _, dtype in done.places}
        model = self._models.get(event.model)
        complete = all(tokens and seconds > 0 for tokens, seconds in done.by_length.values())
        if None in devices or len(hardware) != 1 or len(formats) != 1 or model is None or event.seconds <= 0:
            return  # of several kinds, such as a card and the CPU: not what a plan can use
        if not done.texts or not complete:
            return
        self._record(
            PassRecord(
                model=model,
                hardware=hardware.pop(),
                dtype=formats.pop(),
                runtime=self.runtime,
                workers=sum(device.workers for device in devices if device is not None),
                seconds=event.seconds,
                texts=done.texts,
                tokens=done.tokens,
                by_length=dict(done.by_length),
                at=event.timestamp,
            )
        )


class HistoryRecorder:
    """Adds what a run teaches to the history: each pass when it ends, the other stages at the end of the run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passes = PassRecorder(self._add_pass)
        self._stages: list[StageRecord] = []
        self._collections: dict[str | None, _Collection] = {}
        self._handlers: dict[type[events.Event], Callable[[Any], None]] = {
            events.RunStarted: self._run_started,
            events.ChunksLoaded: self._chunks_loaded,
            events.ModelLoaded: self._model_loaded,
            events.PassFinished: self._pass_finished,
            events.ExportWritten: self._export_written,
            events.CollectionFinished: self._collection_finished,
            events.RunFinished: self._run_finished,
        }

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        self._passes(event)
        if handler := self._handlers.get(type(event)):
            handler(event)

    def _run_started(self, event: events.RunStarted) -> None:
        self._passes.runtime = str(getattr(event.options, "backend", self._passes.runtime))

    def _chunks_loaded(self, event: events.ChunksLoaded) -> None:
        self._note(event, stages.LOAD_CHUNKS, event.loaded, event.seconds)
        collection = self._of(event)
        collection.chunks, collection.known_seconds = event.loaded, collection.known_seconds + event.seconds

    def _model_loaded(self, event: events.ModelLoaded) -> None:
        if (key := self._passes.key_of(event.model)) and event.seconds > 0:
            self._note(event, stages.load_model(key, event.dtype), 1, event.seconds)
        for collection in self._collections.values():
            collection.known_seconds += event.seconds if not collection.finished else 0.0

    def _pass_finished(self, event: events.PassFinished) -> None:
        collection = self._of(event)
        collection.encoded += event.rows
        collection.known_seconds += event.seconds

    def _export_written(self, event: events.ExportWritten) -> None:
        collection = self._of(event)
        collection.known_seconds += event.seconds
        if collection.encoded:  # else the export may have been there, and was only looked at
            self._note(event, stages.export(event.exported.kind), event.exported.rows, event.seconds)

    def _collection_finished(self, event: events.CollectionFinished) -> None:
        collection = self._of(event)
        collection.finished, collection.seconds = True, event.seconds
        if event.status == "completed" and collection.encoded:
            self._note(event, stages.OTHER, collection.chunks, event.seconds - collection.known_seconds)

    def _run_finished(self, event: events.RunFinished) -> None:
        collections = self._collections.values()
        if event.error is None and any(each.encoded for each in collections):
            self._note(event, stages.START, 1, event.seconds - sum(each.seconds for each in collections))
        self._add((), self._stages)
        self._stages = []

    def _of(self, event: events.Event) -> _Collection:
        return self._collections.setdefault(event.collection, _Collection())

    def _note(self, event: events.Event, stage: str, units: int, seconds: float) -> None:
        if units > 0 and seconds > 0:
            self._stages.append(StageRecord(stage, processor_name(), units, seconds, at=event.timestamp))

    def _add_pass(self, record: PassRecord) -> None:
        self._add((record,), ())

    def _add(self, passes: tuple[PassRecord, ...], others: list[StageRecord] | tuple[()]) -> None:
        if passes or others:
            with contextlib.suppress(OSError):  # a cache that cannot be written to: nothing depends on the history
                add_to_history(self._path, passes, others)


@dataclass
class _Collection:
    chunks: int = 0
    encoded: int = 0
    known_seconds: float = 0.0
    seconds: float = 0.0
    finished: bool = False
