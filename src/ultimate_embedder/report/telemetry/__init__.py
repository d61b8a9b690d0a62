"""OpenTelemetry: the events of a run as spans and metrics (`--otel`)."""

from ultimate_embedder.report.telemetry.sink import Telemetry, open_telemetry

__all__ = ["Telemetry", "open_telemetry"]
