"""A Qdrant for tests, by HTTP, and ways in which it fails. `python -m tests.support.qdrant_server` runs it alone."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import threading
import time
import urllib.parse
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import orjson

from tests.support.qdrant.errors import RefusedError
from tests.support.qdrant.points import UPDATED
from tests.support.qdrant.service import Service
from tests.support.qdrant.stored import StoredCollection

__all__ = ["Answer", "Fault", "QdrantServer", "Request", "StoredCollection"]

MAX_REQUEST_BYTES = 32 << 20  # Qdrant's own default
WAITING_CONNECTIONS = 64
Answer = tuple[int, bytes, str | None]  # status, body, Retry-After


@dataclass
class Fault:
    """What goes wrong with `times` requests of this method whose path matches, after `skip` of them went well."""

    method: str
    path: str
    status: int | None = None
    retry_after: str | None = None
    body: bytes = b'{"status": {"error": "a fault on purpose"}}'
    delay_s: float = 0.0
    drop: bool = False
    apply_then_drop: bool = False
    acknowledge_only: bool = False
    times: int = 1
    skip: int = 0


class Request(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    body: bytes
    api_key: str | None
    authorization: str | None = None


class QdrantServer(ThreadingHTTPServer):
    """Serves on a port of 127.0.0.1 while its context is open. Look into `collections` and `requests`."""

    request_queue_size = WAITING_CONNECTIONS

    def __init__(
        self, api_key: str | None = None, *, has_metadata: bool = True, port: int = 0, keep_requests: bool = True
    ) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.api_key = api_key
        self.has_metadata = has_metadata
        """Whether collections have metadata: since Qdrant 1.16. An earlier one ignores them."""
        self.service = Service(has_metadata=has_metadata)
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._keep_requests = keep_requests
        self._faults_lock = threading.Lock()

    @property
    def collections(self) -> dict[str, StoredCollection]:
        """The collections by name."""
        return self.service.collections

    def __enter__(self) -> QdrantServer:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hung up."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def sent_ids(self) -> list[list[str]]:
        """The point ids of each batch that was sent, in order."""
        sent = [request for request in self.requests if request.method == "PUT" and "/points" in request.path]
        bodies = [json.loads(request.body) for request in sent]
        return [
            body["batch"]["ids"] if "batch" in body else [point["id"] for point in body["points"]] for body in bodies
        ]

    def answer(self, request: Request) -> Answer | None:
        """The answer to a request, or None to hang up."""
        if self._keep_requests:
            self.requests.append(request)
        if (fault := self._take_fault(request)) is None:
            return self._apply(request)
        time.sleep(fault.delay_s)
        if fault.status is not None:
            return fault.status, fault.body, fault.retry_after
        if fault.acknowledge_only:
            return _answer(200, "ok", UPDATED)
        applied = None if fault.drop else self._apply(request)
        return None if fault.apply_then_drop else applied

    def _take_fault(self, request: Request) -> Fault | None:
        with self._faults_lock:
            for fault in self.faults:
                if fault.times and fault.method == request.method and re.search(fault.path, request.path):
                    if not fault.skip:
                        fault.times -= 1
                        return fault
                    fault.skip -= 1
        return None

    def _apply(self, request: Request) -> Answer:
        try:
            return _answer(200, "ok", self._carry_out(request))
        except RefusedError as error:
            return _answer(error.status, {"error": str(error)})
        except (ValueError, LookupError, TypeError) as error:  # pydantic's, or what the engine says of ids and types
            return _answer(400, {"error": f"Format error in JSON body: {error}"})
        except Exception as error:  # noqa: BLE001 - the engine has no type of its own for what it refuses
            return _answer(400, {"error": f"Wrong input: {error}"})

    def _carry_out(self, request: Request) -> Any:
        if self.api_key is not None and request.api_key != self.api_key:
            raise RefusedError(401, "Must provide an API key or an Authorization bearer token")
        if len(request.body) > MAX_REQUEST_BYTES:
            raise RefusedError(413, f"JSON payload is larger than allowed (limit: {MAX_REQUEST_BYTES} bytes)")
        parts = urllib.parse.urlsplit(request.path).path.split("/")[1:]
        return self.service.carry_out(request.method, [urllib.parse.unquote(part) for part in parts], request.body)


class _Handler(BaseHTTPRequestHandler):
    server: QdrantServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: the second would wait for an acknowledgement

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        keys = self.headers.get("api-key"), self.headers.get("Authorization")
        answer = self.server.answer(Request(self.command, self.path, body, *keys))
        if answer is None:
            self.close_connection = True
            return
        status, content, retry_after = answer
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _answer(code: int, status: Any, result: Any = None) -> Answer:
    if isinstance(result, dict) and "title" in result:  # the greeting is not wrapped
        return code, orjson.dumps(result), None
    return code, orjson.dumps({"status": status, "result": result, "time": 0.0}), None


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="Qdrant's REST protocol in front of Qdrant Edge, for tests.")
    parser.add_argument("--port", type=int, default=0, help="0 chooses a free one")
    parser.add_argument("--api-key")
    parser.add_argument("--grpc", action="store_true", help="serve points over gRPC too; prints the port")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(QdrantServer(options.api_key, port=options.port, keep_requests=False))
        print(server.url, flush=True)
        if options.grpc:
            from tests.support.qdrant.over_grpc import GrpcServer

            print(stack.enter_context(GrpcServer(server.service, options.api_key)).port, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
