"""Where spans and metrics go: by the application's own set-up, or by the standard `OTEL_*` variables."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from opentelemetry import context, metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ultimate_embedder._version import __version__
from ultimate_embedder.config import TelemetryExporters, telemetry_parent
from ultimate_embedder.errors import UsageError

SERVICE = "ultimate-embedder"
Exporter = TypeVar("Exporter", bound=SpanExporter | MetricExporter)
logger = logging.getLogger("opentelemetry.close")  # among the library's own, which are listened to


@dataclass(frozen=True)
class Opened:
    """What was opened for a run: how it is closed, which sends what is left, and how that is given up."""

    close: Callable[[], Any]
    give_up: Callable[[], Any]


@dataclass(frozen=True)
class Providers:
    """The tracer and the meter of a run, and what is to be closed at its end: only what was opened for it."""

    tracers: trace.TracerProvider
    meters: metrics.MeterProvider
    parent: context.Context
    """Where the span of the run belongs to."""
    to_close: tuple[Opened, ...] = ()

    def close(self, seconds: float) -> list[threading.Thread]:
        """Send what is left; gives up after `seconds`, and gives the threads that have not come to an end by then."""
        # in threads, as an endpoint that accepts and never answers would hold each of them for a minute
        threads = [
            threading.Thread(target=_safely, args=(each.close,), name="telemetry-close", daemon=True)
            for each in self.to_close
        ]
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        late = [(thread, each) for thread, each in zip(threads, self.to_close, strict=True) if thread.is_alive()]
        for _, each in late:
            _safely(each.give_up)
        return [thread for thread, _ in late]


def _safely(close: Callable[[], Any]) -> None:
    try:
        close()
    except Exception:
        logger.exception("it could not be closed")


def open_providers(wanted: TelemetryExporters) -> Providers:
    """Those that the application has set up; else new ones, with the exporters that are wanted."""
    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    to_close: list[Opened] = []
    if not isinstance(tracers, TracerProvider):
        tracers = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        if (spans := _span_exporter(wanted.traces)) is not None:
            tracers.add_span_processor(BatchSpanProcessor(spans))
            to_close.append(Opened(tracers.shutdown, spans.shutdown))
    if not isinstance(meters, MeterProvider):
        values = _metric_exporter(wanted.metrics)
        readers = [PeriodicExportingMetricReader(values)] if values is not None else []
        meters = MeterProvider(readers, resource=_resource(), shutdown_on_exit=False)
        if values is not None:
            to_close.append(Opened(meters.shutdown, values.shutdown))
    return Providers(tracers, meters, _parent(), tuple(to_close))


def _resource() -> Resource:
    told = OTELResourceDetector().detect().attributes  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win
    return Resource.create({"service.name": SERVICE, "service.version": __version__, **told})


def _parent() -> context.Context:
    """The span that the run belongs to: that of the application, or that in `TRACEPARENT`."""
    current = context.get_current()
    if trace.get_current_span(current).get_span_context().is_valid:
        return current
    return TraceContextTextMapPropagator().extract(telemetry_parent(), current)


def _span_exporter(word: str) -> SpanExporter | None:
    if word == "console":
        return ConsoleSpanExporter(out=sys.stderr)  # data goes to stdout
    if word == "none":
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return _checked(lambda: OTLPSpanExporter())


def _metric_exporter(word: str) -> MetricExporter | None:
    if word == "console":
        return ConsoleMetricExporter(out=sys.stderr)
    if word == "none":
        return None
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return _checked(lambda: OTLPMetricExporter())


def _checked(make: Callable[[], Exporter]) -> Exporter:
    """An exporter, whose values of variables may be anything."""
    try:
        return make()
    except (ValueError, OSError) as error:
        raise UsageError(f"--otel: a value of the OTEL_EXPORTER_OTLP_* variables cannot be used: {error}") from error
