"""A Qdrant for tests: the REST calls of an upload, read with qdrant-client's models, and ways in which they fail."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.parse
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pydantic_core
from qdrant_client.http import models

MAX_REQUEST_BYTES = 32 << 20  # Qdrant's own default
Answer = tuple[int, bytes, str | None]  # status, body, Retry-After
UPDATED = models.UpdateResult(operation_id=0, status=models.UpdateStatus.COMPLETED)


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


class RefusedError(Exception):
    """A request that Qdrant refuses: status and message."""


@dataclass
class StoredCollection:
    """A collection in memory."""

    vectors: models.VectorsConfig | None
    points: dict[str, models.Record] = field(default_factory=dict)
    metadata: dict[str, Any] | None = None


class QdrantServer(ThreadingHTTPServer):
    """Serves on a free port of 127.0.0.1 while its context is open. Look into `collections` and `requests`."""

    def __init__(self, api_key: str | None = None, *, has_metadata: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api_key = api_key
        self.has_metadata = has_metadata
        """Whether collections have metadata: since Qdrant 1.16. An earlier one ignores them."""
        self.collections: dict[str, StoredCollection] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> QdrantServer:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def sent_ids(self) -> list[list[str]]:
        """The point ids of each batch that was sent, in order."""
        sent = [request for request in self.requests if request.method == "PUT" and "/points" in request.path]
        return [json.loads(request.body)["batch"]["ids"] for request in sent]

    def answer(self, request: Request) -> Answer | None:
        """The answer to a request, or None to hang up."""
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
        except ValueError as error:  # pydantic's, or a point id that is no UUID
            return _answer(400, {"error": f"Format error in JSON body: {error}"})
        except RefusedError as error:
            return _answer(error.args[0], {"error": error.args[1]})

    def _carry_out(self, request: Request) -> Any:
        if self.api_key is not None and request.api_key != self.api_key:
            raise RefusedError(401, "Must provide an API key or an Authorization bearer token")
        if len(request.body) > MAX_REQUEST_BYTES:
            raise RefusedError(413, f"JSON payload is larger than allowed (limit: {MAX_REQUEST_BYTES} bytes)")
        name, *rest = map(urllib.parse.unquote, urllib.parse.urlsplit(request.path).path.split("/")[2:])
        match request.method, rest, self.collections.get(name):
            case "GET", ["exists"], found:
                return models.CollectionExistence(exists=found is not None)
            case "PUT", [], None:
                wanted = models.CreateCollection.model_validate_json(request.body)
                self.collections[name] = StoredCollection(wanted.vectors)
                return True
            case "PUT", [], _:
                raise RefusedError(409, f"Wrong input: Collection `{name}` already exists!")
            case _, _, None:
                raise RefusedError(404, f"Not found: Collection `{name}` doesn't exist!")
            case "GET", [], found:
                return _describe(found)
            case "PATCH", [], found:
                if self.has_metadata:
                    found.metadata = {**(found.metadata or {}), **json.loads(request.body).get("metadata", {})}
                return True
            case "POST", ["points"], found:
                wanted_ids = map(str, models.PointRequest.model_validate_json(request.body).ids)
                return [found.points[each] for each in wanted_ids if each in found.points]
            case "POST", ["points", "scroll"], found:
                return _scroll(found, models.ScrollRequest.model_validate_json(request.body).filter)
            case "PUT", ["points"], found:
                return _upsert(found, models.PointsBatch.model_validate_json(request.body).batch)
            case "POST", ["points", "count"], found:
                return _count(found, models.CountRequest.model_validate_json(request.body).filter)
        raise RefusedError(404, f"{request.method} {request.path} is not spoken here")


class _Handler(BaseHTTPRequestHandler):
    server: QdrantServer
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        keys = self.headers.get("api-key"), self.headers.get("Authorization")
        answer = self.server.answer(Request(self.command, self.path, body, *keys))
        if answer is None:
            self.close_connection = True
            return
        status, content, retry_after = answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_PATCH = _handle  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _describe(collection: StoredCollection) -> dict[str, Any]:
    config = models.CollectionConfig(
        params=models.CollectionParams(vectors=collection.vectors),
        hnsw_config=models.HnswConfig(m=16, ef_construct=100, full_scan_threshold=10_000),
        # the first two are required by qdrant-client 1.15, as by servers of that time, and optional since
        optimizer_config=models.OptimizersConfig(
            deleted_threshold=0.2, vacuum_min_vector_number=1000, default_segment_number=0, flush_interval_sec=5
        ),
    )
    green, ok = models.CollectionStatus.GREEN, models.OptimizersStatusOneOf.OK
    info = models.CollectionInfo(status=green, optimizer_status=ok, segments_count=1, config=config, payload_schema={})
    described: dict[str, Any] = pydantic_core.to_jsonable_python(info, exclude_none=True)
    if collection.metadata is not None:  # which the models of qdrant-client 1.15 do not have
        described["config"]["metadata"] = collection.metadata
    return described


def _upsert(collection: StoredCollection, batch: models.Batch) -> models.UpdateResult:
    params: dict[str, models.VectorParams] = _by_name(collection.vectors)
    vectors: dict[str, list[list[float]]] = _by_name(batch.vectors)
    for name, each in vectors.items():
        if params.get(name) is None:
            raise RefusedError(400, f"Wrong input: Not existing vector name error: {name}")
        if any(len(vector) != params[name].size for vector in each):
            raise RefusedError(400, f"Wrong input: Vector dimension error: expected dim: {params[name].size}")
    ids = [str(uuid.UUID(str(point))) for point in batch.ids]
    for row, (point, payload) in enumerate(zip(ids, batch.payloads or [], strict=True)):
        vector = {name: each[row] for name, each in vectors.items()}
        collection.points[point] = models.Record(id=point, vector=vector.get("", vector), payload=payload)
    return UPDATED


def _by_name(vectors: Any) -> dict[str, Any]:
    """Vectors, or what is known of them; one without a name is called ''."""
    return vectors if isinstance(vectors, dict) else {"": vectors}


def _scroll(collection: StoredCollection, wanted: models.Filter | None) -> models.ScrollResult:
    match wanted and wanted.must_not:
        case [models.IsEmptyCondition(is_empty=models.PayloadField(key=key))]:
            found = [point for point in collection.points.values() if (point.payload or {}).get(key)]
            return models.ScrollResult(points=[models.Record(id=each.id, payload=each.payload) for each in found[:1]])
    raise RefusedError(400, "only a filter for a field is understood here")


def _count(collection: StoredCollection, wanted: models.Filter | None) -> models.CountResult:
    match wanted and wanted.must:
        case None:
            return models.CountResult(count=len(collection.points))
        case [models.HasIdCondition(has_id=ids)]:
            return models.CountResult(count=len(collection.points.keys() & {str(point) for point in ids}))
    raise RefusedError(400, "only a has_id filter is understood here")


def _answer(code: int, status: Any, result: Any = None) -> Answer:
    return code, pydantic_core.to_json({"status": status, "result": result, "time": 0.0}), None
