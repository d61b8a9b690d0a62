"""Calls to a Qdrant server, each with retries. Whatever it answers, an `UploadError` says what is wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from qdrant_client.http import api_client
from qdrant_client.http.exceptions import UnexpectedResponse

from ultimate_embedder.errors import StoppedError, UploadError
from ultimate_embedder.events import Emit, Retried
from ultimate_embedder.export.server.connection import Connection
from ultimate_embedder.export.server.failures import (
    FAILURES,
    UNEXPECTED_ANSWER,
    UNREACHABLE_TRIES,
    describe,
    is_temporary_status,
    is_unreachable,
    shown,
    temporary,
)
from ultimate_embedder.retry import RetryPolicy, Temporary, call_with_retries

RECORD_KEY = "ultimate_embedder"  # in the metadata of a collection, or in the payloads where there is no metadata
NOT_QDRANT = "the answer is not one of Qdrant's"
NOT_RUNNING = ". Is Qdrant running there? Start it (docker run -p 6333:6333 qdrant/qdrant), or check --url."
NO_TLS = ". Check whether --url should be http:// or https://; --ca-cert FILE trusts a CA of your own."
JSON = {"Content-Type": "application/json"}

Result = TypeVar("Result")


class Server:
    """A Qdrant server. May be used by several threads."""

    def __init__(self, connection: Connection, url: str, emit: Emit, policy: RetryPolicy) -> None:
        self.url = url
        self.stopped = threading.Event()
        """Set when the upload has ended: calls are not retried any more."""
        self._connection = connection
        self._emit = emit
        self._policy = policy
        self._answered = False

    def exists(self, target: str) -> bool:
        """Whether there is a collection, or an alias, of this name."""
        return bool(self.ask("look up the collection", "GET", "/exists", target, read=lambda found: found["exists"]))

    def create(self, target: str, body: Mapping[str, Any]) -> None:
        """Create a collection."""
        try:
            self.ask("create the collection", "PUT", "", target, body)
        except UploadError as error:
            if _status(error) != HTTPStatus.CONFLICT:
                raise  # conflict: an earlier attempt succeeded and its response was lost

    def delete(self, target: str) -> None:
        """Delete a collection."""
        try:
            self.ask("delete the collection", "DELETE", "", target)
        except UploadError as error:
            if _status(error) != HTTPStatus.NOT_FOUND:
                raise  # not found: see above

    def config(self, target: str) -> dict[str, Any]:
        """The configuration of a collection, with its parameters."""
        found: dict[str, Any] = self.info(target)["config"]
        return found

    def info(self, target: str) -> dict[str, Any]:
        """What the server says of a collection: its configuration and payload schema."""

        def read(found: Any) -> dict[str, Any]:
            if not isinstance(found["config"], dict) or not isinstance(found["config"]["params"], dict):
                raise TypeError
            return dict(found)

        return self.ask("read the collection", "GET", "", target, read=read)

    def change(self, what: str, target: str, body: Mapping[str, Any]) -> None:
        """Change the configuration of a collection."""
        self.ask(what, "PATCH", "", target, body)

    def read_record(self, target: str, key: str = RECORD_KEY) -> Any:
        """What we have noted in the metadata of the collection; None if there is nothing."""
        metadata = self.config(target).get("metadata")
        if metadata is None:
            return None
        if not isinstance(metadata, Mapping):
            raise UploadError(f"cannot read the metadata of {target} on {self.url}: {NOT_QDRANT}. Check --url.")
        return metadata.get(key)

    def write_record(self, target: str, record: Mapping[str, Any], key: str = RECORD_KEY) -> bool:
        """Note something in the metadata of the collection; False if the server is older than 1.16, and has none."""
        try:
            self.change("write the metadata of the collection", target, {"metadata": {key: record}})
        except UploadError as error:
            status = _status(error)
            if status is None or is_temporary_status(status) or status in (401, 403):
                raise
        return bool(self.read_record(target, key) == record)

    def marked_record(self, target: str) -> Any:
        """What we have noted in the payloads, on a server without metadata; None if no point has such a note."""
        condition = {"must_not": [{"is_empty": {"key": RECORD_KEY}}]}
        body = {"filter": condition, "limit": 1, "with_payload": [RECORD_KEY], "with_vector": False}

        def read(found: Any) -> Any:
            points = found["points"]
            return (points[0]["payload"] or {}).get(RECORD_KEY) if points else None

        return self.ask("read a point", "POST", "/points/scroll", target, body, read=read)

    def upsert(self, target: str, body: bytes) -> None:
        """Send points as JSON and wait until they are applied."""
        self.ask("send points", "PUT", "/points", target, body, wait="true")

    def upsert_messages(self, request: Any) -> None:
        """Send points over gRPC and wait until they are applied."""
        stub = self._connection.grpc
        assert stub is not None
        self.call("send points over gRPC", lambda: stub.Upsert(request, timeout=self._connection.timeout_s))

    def count(self, target: str, ids: Sequence[str] | None = None) -> int:
        """The number of points on the server: all, or those with these ids."""
        body: dict[str, Any] = {"exact": True}
        if ids:
            body["filter"] = {"must": [{"has_id": list(ids)}]}
        return self.ask(
            "count points", "POST", "/points/count", target, body, read=lambda found: _count(found["count"])
        )

    def ask(
        self,
        what: str,
        method: str,
        path: str,
        target: str | None = None,
        body: Mapping[str, Any] | bytes | None = None,
        read: Callable[[Any], Result] = lambda found: found,
        **params: str,
    ) -> Result:
        """Send a request about a collection, or about the server; `read` gets the result of the answer.

        The requests are written here and not by the client: its models depend on its version, and know less than a
        newer server.
        """
        options: dict[str, Any] = {"params": params} if params else {}
        if body is not None:
            options |= {"content": body if isinstance(body, bytes) else json.dumps(body), "headers": JSON}
        if target is not None:
            path = f"/collections/{{collection_name}}{path}"
            options["path_params"] = {"collection_name": _path_part(target)}

        def call() -> Result:
            client = self._connection.http.http.client
            answer = client.request(type_=dict[str, Any], method=method, url=path, **options)
            return read(answer["result"])

        return self.call(what, call)

    def call(self, what: str, call: Callable[[], Result]) -> Result:
        """Make a call; retries it, and says what is wrong in the end."""

        def note(attempt: int, wait_s: float, reason: str) -> None:
            if self.stopped.is_set():
                raise StoppedError("the upload has ended")
            self._emit(Retried(what=what, attempt=attempt, wait_seconds=wait_s, reason=reason))

        try:
            result = call_with_retries(call, self._temporary, note, self._policy)
        except FAILURES as error:
            problem = describe(error)
            if self._never_reached(error):
                problem += NO_TLS if "SSL" in problem else NOT_RUNNING
            raise UploadError(f"cannot {what} on {self.url}: {problem}") from error
        except UNEXPECTED_ANSWER as error:
            raise UploadError(f"cannot {what} on {self.url}: {NOT_QDRANT}. Check --url.") from error
        self._answered = True
        return result

    def _temporary(self, error: Exception) -> Temporary | None:
        passing = temporary(error)
        if passing is not None and self._never_reached(error):
            return replace(passing, tries=UNREACHABLE_TRIES)
        return passing

    def _never_reached(self, error: Exception) -> bool:
        return not self._answered and is_unreachable(error)

    def version(self) -> str | None:
        """The version of the server; None if it does not say."""

        def read() -> str | None:
            answer = self._connection.http.http.client.request(type_=dict[str, Any], method="GET", url="/")
            found = answer.get("version")
            return shown(found) if isinstance(found, str) else None

        return self.call("ask for the version", read)


def _status(error: UploadError) -> int | None:
    """The HTTP status that an error is about."""
    return error.__cause__.status_code if isinstance(error.__cause__, UnexpectedResponse) else None


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError
    return value


def _path_part(name: str) -> str:
    """The name of a collection, quoted for older clients, which put it into the path as it is."""
    return name if hasattr(api_client, "quote_path_params") else quote(name, safe="")
