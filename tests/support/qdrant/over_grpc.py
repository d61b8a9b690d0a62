"""The points of the server over gRPC: what an upload sends that way."""

from __future__ import annotations

from concurrent import futures
from typing import Any

import grpc  # type: ignore[import-untyped]
from qdrant_client import grpc as messages
from qdrant_client.conversions.conversion import grpc_to_payload

from tests.support.qdrant.errors import RefusedError
from tests.support.qdrant.service import Service

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
MAX_MESSAGE_BYTES = 32 << 20
THREADS = 8


class PointsOverGrpc(messages.points_service_pb2_grpc.PointsServicer):
    """Upserts into the same collections as those of the REST protocol."""

    def __init__(self, service: Service, api_key: str | None) -> None:
        self._service = service
        self._api_key = api_key
        self.faults: list[int] = []
        """Statuses with which the next requests fail; 0 for none."""
        self.upserts: list[int] = []
        """How many points each request had."""
        self.headers: dict[str, Any] = {}
        """Of the last request."""

    def Upsert(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Store points."""
        self.headers = dict(context.invocation_metadata())
        if self._api_key is not None and self.headers.get("api-key") != self._api_key:
            context.abort(CODES[401], "Must provide an API key or an Authorization bearer token")
        if self.faults and (status := self.faults.pop(0)):
            context.abort(CODES[status], "a fault on purpose")
        try:
            name = self._service.aliases.get(request.collection_name, request.collection_name)
            found = self._service.collections.get(name)
            if found is None:
                raise RefusedError(404, f"Not found: Collection `{name}` doesn't exist!")
            found.upsert([_point(each) for each in request.points])
        except RefusedError as error:
            context.abort(CODES[error.status], str(error))
        except Exception as error:  # noqa: BLE001 - the engine has no type of its own for what it refuses
            context.abort(CODES[400], f"Wrong input: {error}")
        self.upserts.append(len(request.points))
        done = messages.UpdateResult(operation_id=0, status=messages.UpdateStatus.Completed)
        return messages.PointsOperationResponse(result=done, time=0.0)


class GrpcServer:
    """Serves points over gRPC on a free port while its context is open."""

    def __init__(
        self, service: Service, api_key: str | None = None, certificate: tuple[bytes, bytes] | None = None
    ) -> None:
        self.points = PointsOverGrpc(service, api_key)
        options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        self._server = grpc.server(futures.ThreadPoolExecutor(THREADS), options=options)
        add = messages.points_service_pb2_grpc.add_PointsServicer_to_server
        add(self.points, self._server)  # type: ignore[no-untyped-call]
        if certificate is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([certificate]))

    def __enter__(self) -> GrpcServer:
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop(grace=None)


def _point(point: Any) -> dict[str, Any]:
    return {
        "id": point.id.uuid or point.id.num,
        "vector": _vector(point.vectors),
        "payload": grpc_to_payload(point.payload),
    }


def _vector(vectors: Any) -> Any:
    if vectors.HasField("vectors"):
        return {name: _numbers(each) for name, each in vectors.vectors.vectors.items()}
    return _numbers(vectors.vector)


def _numbers(vector: Any) -> Any:
    if vector.HasField("sparse"):
        return {"indices": list(vector.sparse.indices), "values": list(vector.sparse.values)}
    if vector.HasField("indices"):  # clients before 1.16 send these, and data
        return {"indices": list(vector.indices.data), "values": list(vector.data)}
    return list(vector.dense.data or vector.data)
