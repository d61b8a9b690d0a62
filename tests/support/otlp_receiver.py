"""A receiver of OTLP over HTTP on the loopback, which parses what is sent to it."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """What has arrived: spans, and the latest value of each metric; or nothing ever answers."""

    def __init__(self, url: str, release: threading.Event) -> None:
        self.url = url
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.metrics: dict[str, Any] = {}
        self.release = release
        """Set to let requests be answered."""

    def take(self, path: str, body: bytes) -> None:
        """Parse a request."""
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(attributes(resource.resource))
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics |= {each.name: each for scope in resource.scope_metrics for each in scope.metrics}


def attributes(thing: Any) -> dict[str, Any]:
    """The attributes of a span, an event or a resource."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in thing.attributes}


@contextlib.contextmanager
def receiving(*, silent: bool = False) -> Iterator[Receiver]:
    """Receive until the block ends; `silent` accepts connections and answers none."""
    release = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if silent:
                release.wait(60)
                return
            receiver.take(self.path, gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = Receiver(f"http://127.0.0.1:{server.server_port}", release)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield receiver
    finally:
        release.set()
        server.shutdown()
        server.server_close()
