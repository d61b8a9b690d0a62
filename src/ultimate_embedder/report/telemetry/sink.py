"""The event sink of `--otel`. Nothing that it does can fail or delay a run."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ultimate_embedder._version import __version__
from ultimate_embedder.config import telemetry_exporters
from ultimate_embedder.errors import UsageError
from ultimate_embedder.events import Event

if TYPE_CHECKING:
    from ultimate_embedder.report.telemetry.providers import Providers

INSTALL = "pip install 'ultimate-embedder[otel]'"
CLOSE_SECONDS = 3.0  # that the end of a run waits for what is left to be sent
LIBRARY_LOGGER = "opentelemetry"
LONGEST_CAUSE = 200
SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([^\"')]+)")
ADVICE = "Check OTEL_EXPORTER_OTLP_ENDPOINT (http://localhost:4318 by default). The run is not affected."


def open_telemetry(report: Callable[[str], None]) -> Telemetry:
    """The sink of a run, with exporters by the `OTEL_*` variables; `report` is told once if they do not work.

    Raises `UsageError` if OpenTelemetry is not installed, or a variable has a value that cannot be used.
    """
    wanted = telemetry_exporters()
    try:
        from ultimate_embedder.report.telemetry.providers import open_providers

        return Telemetry(open_providers(wanted), report)
    except ImportError as error:
        raise UsageError(f"--otel needs OpenTelemetry ({error}). Run: {INSTALL}") from error


class Telemetry:
    """Turns events into spans and metrics, until it is closed."""

    def __init__(self, providers: Providers, report: Callable[[str], None]) -> None:
        from ultimate_embedder.report.telemetry import names
        from ultimate_embedder.report.telemetry.metrics import MetricWriter
        from ultimate_embedder.report.telemetry.spans import SpanWriter

        self._providers = providers
        self._watch = _LogWatch(report)
        if providers.to_close:  # else it is the application's library, and its log
            self._watch.begin()
        self._spans = SpanWriter(providers.tracers.get_tracer(names.SCOPE, __version__), providers.parent)
        self._metrics = MetricWriter(providers.meters.get_meter(names.SCOPE, __version__))
        self._closed = self._ended = False

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if self._closed:
            return
        try:
            self._spans(event)
            self._metrics(event)
        except Exception as error:  # noqa: BLE001 - whatever a library does, the run goes on
            self._closed = True
            self._watch.tell(f"an event could not be recorded: {error!r}; no more are")

    def close(self) -> None:
        """End all spans and send what is left, for a few seconds at most."""
        if self._ended:
            return
        self._closed = self._ended = True
        try:
            self._spans.close(time.time())
        except Exception as error:  # noqa: BLE001 - as above
            self._watch.tell(f"spans could not be ended: {error!r}")
        late = self._providers.close(CLOSE_SECONDS)
        if late:
            self._watch.tell(f"the end of the run was not sent within {CLOSE_SECONDS:g} s{self._watch.reason}")
        self._watch.end(late)


class _LogWatch(logging.Handler):
    """What the library logs instead of raising, told once and not printed between lines of progress."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._report = report
        self._logger = logging.getLogger(LIBRARY_LOGGER)
        self._propagated = self._logger.propagate
        self.reason = ""
        """Of the latest failure, in brackets."""
        self._teller: threading.Thread | None = None

    def begin(self) -> None:
        """Listen."""
        self._logger.addHandler(self)
        self._logger.propagate = False

    def end(self, late: Sequence[threading.Thread]) -> None:
        """Leave logging as it was, when threads that are late have come to an end as well."""
        if self._teller is not None:
            self._teller.join(CLOSE_SECONDS)
        if late:
            threading.Thread(target=self._restore, args=(late,), name="telemetry-late", daemon=True).start()
        else:
            self._restore()

    def _restore(self, late: Sequence[threading.Thread] = ()) -> None:
        for thread in late:
            thread.join()
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated

    def emit(self, record: logging.LogRecord) -> None:
        """Take a message of the library: an error is told, with the reason that a warning before it had."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # a format that does not fit its values
            message = str(record.msg)
        cause = str(record.exc_info[1]) if record.exc_info else message
        if record.levelno >= logging.ERROR:
            self.reason = _in_brackets(cause) or self.reason
            self.tell(f"spans or metrics could not be sent{self.reason or f' ({cause[:LONGEST_CAUSE]})'}")
        else:
            self.reason = _in_brackets(cause) or self.reason

    def tell(self, problem: str) -> None:
        """Report a problem, the first one only."""
        if self._teller is None:
            # from a thread of its own: whoever logs may hold locks of the library
            text = f"OpenTelemetry: {problem}. {ADVICE}"
            self._teller = threading.Thread(target=self._report, args=(text,), name="telemetry-warning", daemon=True)
            self._teller.start()


def _in_brackets(message: str) -> str:
    """The error of the system that a message has in it, if any."""
    found = SYSTEM_ERROR.search(message)
    return f" ({found[1].strip()})" if found else ""
