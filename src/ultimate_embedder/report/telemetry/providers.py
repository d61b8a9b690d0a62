"""Where spans and metrics go: by the application's own set-up, or by the standard `OTEL_*` variables."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Providers:
    """The tracer and the meter of a run, and what is to be closed at its end: only what was opened for it."""

    tracers: trace.TracerProvider
    meters: metrics.MeterProvider
    parent: context.Context
    """Where the span of the run belongs to."""
    to_close: tuple[Callable[[], Any], ...] = ()

    def close(self, seconds: float) -> bool:
        """Send what is left; gives up after `seconds`, and says whether all was sent by then."""
        # in threads, as an endpoint that accepts and never answers would hold each of them for a minute
        threads = [threading.Thread(target=each, name="telemetry-close", daemon=True) for each in self.to_close]
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)


def open_providers(wanted: TelemetryExporters) -> Providers:
    """Those that the application has set up; else new ones, with the exporters that are wanted."""
    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    to_close: list[Callable[[], Any]] = []
    if not isinstance(tracers, TracerProvider):
        tracers = _tracers(wanted.traces)
        to_close.append(tracers.shutdown)
    if not isinstance(meters, MeterProvider):
        meters = _meters(wanted.metrics)
        to_close.append(meters.shutdown)
    return Providers(tracers, meters, _parent(), tuple(to_close))


def _tracers(exporter: str) -> TracerProvider:
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    if (made := _span_exporter(exporter)) is not None:
        provider.add_span_processor(BatchSpanProcessor(made))
    return provider


def _meters(exporter: str) -> MeterProvider:
    made = _metric_exporter(exporter)
    readers = [PeriodicExportingMetricReader(made)] if made is not None else []
    return MeterProvider(readers, resource=_resource(), shutdown_on_exit=False)


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

    return _checked(OTLPSpanExporter)


def _metric_exporter(word: str) -> MetricExporter | None:
    if word == "console":
        return ConsoleMetricExporter(out=sys.stderr)
    if word == "none":
        return None
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return _checked(OTLPMetricExporter)


def _checked(make: Callable[[], Any]) -> Any:
    """An exporter, whose values of variables may be anything."""
    try:
        return make()
    except (ValueError, OSError) as error:
        raise UsageError(f"--otel: a value of the OTEL_EXPORTER_OTLP_* variables cannot be used: {error}") from error
