"""Events of a run as spans: run, collections, passes, some batches, and what else takes time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from ultimate_embedder import events
from ultimate_embedder.report.telemetry import names

BATCH_SPAN_SECONDS = 5.0  # between two batches of a pass and device that get a span: 12 hours are 8,640 spans
NANOSECONDS = 1_000_000_000
PassKey = tuple[str | None, int]


class SpanWriter:
    """Opens and ends spans; times are those of the events. Metrics count every batch, spans show some of them."""

    def __init__(self, tracer: Tracer, parent: context.Context) -> None:
        self._tracer = tracer
        self._parent = parent
        self._run: Span | None = None
        self._collections: dict[str | None, Span] = {}
        self._passes: dict[PassKey, Span] = {}
        self._models: dict[PassKey, str] = {}
        self._last_batch: dict[tuple[str | None, int, str], float] = {}
        self._without_span: dict[tuple[str | None, int, str], int] = {}
        self._handlers: dict[type[events.Event], Callable[[Any], None]] = {
            events.RunStarted: self._run_started,
            events.CollectionStarted: self._collection_started,
            events.ChunksLoaded: self._chunks_loaded,
            events.ModelLoaded: self._model_loaded,
            events.PassStarted: self._pass_started,
            events.BatchEncoded: self._batch_encoded,
            events.BatchStalled: self._batch_stalled,
            events.PassFinished: self._pass_finished,
            events.ExportWritten: self._export_written,
            events.CompanionPlaced: self._mitigated,
            events.Mitigated: self._mitigated,
            events.Warned: self._warned,
            events.Retried: self._retried,
            events.CollectionFinished: self._collection_finished,
            events.RunFinished: self._run_finished,
        }

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        if handler := self._handlers.get(type(event)):
            handler(event)

    def close(self, at: float) -> None:
        """End what is still open."""
        for span in (*self._passes.values(), *self._collections.values()):
            span.end(_ns(at))
        self._passes.clear()
        self._collections.clear()
        if self._run is not None:
            self._run.end(_ns(at))
            self._run = None

    def _start(self, name: str, above: Span | None, at: float, attributes: Mapping[str, Any]) -> Span:
        place = trace.set_span_in_context(above) if above is not None else self._parent
        return self._tracer.start_span(
            name, place, SpanKind.INTERNAL, attributes=_known(attributes), start_time=_ns(at)
        )

    def _past(self, name: str, event: events.Event, seconds: float, attributes: Mapping[str, Any]) -> None:
        """A span of something that is over."""
        span = self._start(name, self._above(event), event.timestamp - seconds, attributes)
        span.end(_ns(event.timestamp))

    def _run_started(self, event: events.RunStarted) -> None:
        options = event.options
        attributes = {
            "ultimate_embedder.models": [choice.name for choice in options.models],
            "ultimate_embedder.mode": options.mode,
            "ultimate_embedder.fusion": options.fusion,
            "ultimate_embedder.precision": getattr(options, "precision", None),
        }
        self._run = self._start(names.RUN_SPAN, None, event.timestamp, attributes)

    def _collection_started(self, event: events.CollectionStarted) -> None:
        attributes = {names.COLLECTION: event.collection, "ultimate_embedder.files": event.files}
        self._collections[event.collection] = self._start(names.COLLECTION_SPAN, self._run, event.timestamp, attributes)

    def _above(self, event: events.Event) -> Span | None:
        return self._collections.get(event.collection, self._run)

    def _chunks_loaded(self, event: events.ChunksLoaded) -> None:
        counts = {"ultimate_embedder.chunks.found": event.found, "ultimate_embedder.chunks.rejected": event.rejected}
        self._past(names.LOAD_SPAN, event, event.seconds, counts)

    def _model_loaded(self, event: events.ModelLoaded) -> None:
        about = {names.REQUEST_MODEL: event.model, names.DIMENSIONS: event.dim}
        self._past(names.MODEL_SPAN, event, event.seconds, about)

    def _export_written(self, event: events.ExportWritten) -> None:
        about = {
            "ultimate_embedder.export.kind": event.exported.kind,
            "ultimate_embedder.export.points": event.exported.rows,
            "ultimate_embedder.export.size": event.exported.size_bytes,
        }
        self._past(names.EXPORT_SPAN, event, event.seconds, about)

    def _pass_started(self, event: events.PassStarted) -> None:
        key = (event.collection, event.model_pass)
        if key in self._passes:  # in turns, it goes on
            return
        attributes = {
            names.REQUEST_MODEL: event.model,
            names.COLLECTION: event.collection,
            "ultimate_embedder.devices": event.devices,
            "ultimate_embedder.precision": event.dtype,
            "ultimate_embedder.texts": event.texts,
            "ultimate_embedder.texts.stored": event.stored_texts,
        }
        self._passes[key] = self._start(names.PASS_SPAN, self._above(event), event.timestamp, attributes)
        self._models[key] = event.model

    def _batch_encoded(self, event: events.BatchEncoded) -> None:
        key = (event.collection, event.model_pass, event.device)
        last = self._last_batch.get(key)
        if last is not None and event.timestamp - last < BATCH_SPAN_SECONDS:
            self._without_span[key] = self._without_span.get(key, 0) + 1
            return
        self._last_batch[key] = event.timestamp
        above = self._passes.get((event.collection, event.model_pass), self._above(event))
        attributes = {
            names.OPERATION_NAME: names.OPERATION,
            names.PROVIDER_NAME: names.PROVIDER,
            names.REQUEST_MODEL: event.model,
            names.INPUT_TOKENS: event.tokens,
            names.DEVICE: event.device,
            "ultimate_embedder.batch.index": event.batch_index,
            "ultimate_embedder.batch.rows": event.rows,
            "ultimate_embedder.batch.planned_rows": event.planned_rows,
            "ultimate_embedder.batch.padded_tokens": event.padded_tokens,
            "ultimate_embedder.batch.longest_tokens": event.longest,
            "ultimate_embedder.batch.idle_time": event.wait_seconds,
            "ultimate_embedder.batch.without_span": self._without_span.pop(key, 0),
            "ultimate_embedder.device.memory.peak": event.memory.peak_reserved_bytes,
        }
        began = event.began if event.began is not None else event.timestamp - event.forward_seconds
        span = self._start(f"{names.OPERATION} {event.model}", above, began, attributes)
        span.end(_ns(began + event.forward_seconds))

    def _pass_finished(self, event: events.PassFinished) -> None:
        key = (event.collection, event.model_pass)
        self._models.pop(key, None)
        if (span := self._passes.pop(key, None)) is not None:
            span.set_attributes({names.DIMENSIONS: event.dim, "ultimate_embedder.texts.encoded": event.rows})
            span.end(_ns(event.timestamp))

    def _collection_finished(self, event: events.CollectionFinished) -> None:
        for key in [key for key in self._passes if key[0] == event.collection]:
            self._models.pop(key, None)
            self._passes.pop(key).end(_ns(event.timestamp))
        if (span := self._collections.pop(event.collection, None)) is not None:
            span.set_attribute(names.STATUS, event.status)
            _end(span, event.timestamp, event.error if event.status == "failed" else None)

    def _run_finished(self, event: events.RunFinished) -> None:
        if self._run is not None and event.error is not None:
            self._run.set_attribute(names.ERROR_TYPE, "_OTHER")
            self._run.set_status(Status(StatusCode.ERROR, event.error))
        self.close(event.timestamp)

    # span events

    def _mitigated(self, event: events.Mitigated | events.CompanionPlaced) -> None:
        details = {f"ultimate_embedder.mitigation.{key}": value for key, value in event.details.items()}
        span = self._of_model(event, event.details.get("model"))
        _add(span, names.MITIGATION_EVENT, event, {names.MITIGATION_TYPE: event.kind, **details})

    def _batch_stalled(self, event: events.BatchStalled) -> None:
        about = {names.DEVICE: event.device, "ultimate_embedder.stall.duration": event.seconds}
        _add(self._of_model(event, event.model), names.STALL_EVENT, event, about)

    def _warned(self, event: events.Warned) -> None:
        _add(self._above(event), names.WARNING_EVENT, event, {names.MESSAGE: event.message})

    def _retried(self, event: events.Retried) -> None:
        about = {names.MESSAGE: f"{event.what}: {event.reason}", "ultimate_embedder.retry.attempt": event.attempt}
        _add(self._above(event), names.RETRY_EVENT, event, about)

    def _of_model(self, event: events.Event, model: object) -> Span | None:
        """The pass of a model, or what is above it."""
        keys = [key for key, name in self._models.items() if key[0] == event.collection and name == model]
        return self._passes[keys[0]] if keys and keys[0] in self._passes else self._above(event)


def _add(span: Span | None, name: str, event: events.Event, attributes: Mapping[str, Any]) -> None:
    if span is not None:
        span.add_event(name, _known(attributes), _ns(event.timestamp))


def _end(span: Span, at: float, error: str | None) -> None:
    if error is not None:
        span.set_attribute(names.ERROR_TYPE, "_OTHER")
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(_ns(at))


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of the types that OpenTelemetry has: what is None is left out, what is nested is text."""
    return {key: _plain(value) for key, value in attributes.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return value if isinstance(value, str | bool | int | float) else str(value)


def _ns(seconds: float) -> int:
    return int(seconds * NANOSECONDS)
