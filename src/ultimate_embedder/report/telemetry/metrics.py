"""Events of a run as metrics. Every batch counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.metrics import Meter

from ultimate_embedder import events
from ultimate_embedder.report.telemetry import names
from ultimate_embedder.report.telemetry.names import INSTRUMENTS, Instrument
from ultimate_embedder.types import MemorySnapshot


class MetricWriter:
    """Adds events up in the instruments of a meter."""

    def __init__(self, meter: Meter) -> None:
        self._record = {each.name: _made(meter, each) for each in INSTRUMENTS}
        self._handlers: dict[type[events.Event], Callable[[Any], None]] = {
            events.ChunksLoaded: self._chunks_loaded,
            events.LeaseAcquired: self._lease,
            events.LeaseReleased: self._lease,
            events.BatchEncoded: self._batch_encoded,
            events.VectorsFused: self._vectors_fused,
            events.CompanionPlaced: self._mitigated,
            events.Mitigated: self._mitigated,
            events.Warned: self._warned,
            events.CollectionFinished: self._collection_finished,
        }

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        if handler := self._handlers.get(type(event)):
            handler(event)

    def _add(self, instrument: Instrument, value: float, attributes: Mapping[str, str]) -> None:
        self._record[instrument.name](value, attributes)

    def _chunks_loaded(self, event: events.ChunksLoaded) -> None:
        for state, count in (("found", event.found), ("rejected", event.rejected)):
            self._add(names.CHUNKS, count, {**_collection(event), names.CHUNK_STATE: state})

    def _vectors_fused(self, event: events.VectorsFused) -> None:
        self._add(names.CHUNKS, event.points, {**_collection(event), names.CHUNK_STATE: "embedded"})

    def _batch_encoded(self, event: events.BatchEncoded) -> None:
        model = {
            names.OPERATION_NAME: names.OPERATION,
            names.PROVIDER_NAME: names.PROVIDER,
            names.REQUEST_MODEL: event.model,
            names.DEVICE: event.device,
        }
        self._add(names.DURATION, event.forward_seconds, model)
        self._add(names.TOKENS, event.tokens, model)
        self._add(names.ROWS, event.rows, model)
        self._add(names.PADDED, event.padded_tokens, model)
        self._add(names.TEXTS, event.texts, model)
        self._add(names.IDLE, event.wait_seconds, {names.DEVICE: event.device})
        self._memory(event.memory)

    def _lease(self, event: events.LeaseAcquired | events.LeaseReleased) -> None:
        for memory in event.memory:
            self._memory(memory)

    def _memory(self, memory: MemorySnapshot) -> None:
        device = {names.DEVICE: memory.device}
        self._add(names.MEMORY, memory.reserved_bytes, device)
        self._add(names.LIMIT, memory.ceiling_bytes, device)
        self._add(names.PEAK, memory.peak_reserved_bytes, device)

    def _mitigated(self, event: events.Mitigated | events.CompanionPlaced) -> None:
        self._add(names.MITIGATIONS, 1, {**_collection(event), names.MITIGATION_TYPE: event.kind})

    def _warned(self, event: events.Warned) -> None:
        self._add(names.WARNINGS, 1, _collection(event))

    def _collection_finished(self, event: events.CollectionFinished) -> None:
        self._add(names.COLLECTION_DURATION, event.seconds, {**_collection(event), names.STATUS: event.status})


def _collection(event: events.Event) -> dict[str, str]:
    return {names.COLLECTION: event.collection} if event.collection else {}


def _made(meter: Meter, each: Instrument) -> Callable[[float, Mapping[str, str]], None]:
    """The function that takes a value of an instrument."""
    if each.kind == "counter":
        return meter.create_counter(each.name, each.unit, each.about).add
    if each.kind == "gauge":
        return meter.create_gauge(each.name, each.unit, each.about).set
    histogram = meter.create_histogram(
        each.name, each.unit, each.about, explicit_bucket_boundaries_advisory=each.boundaries
    )
    return histogram.record
