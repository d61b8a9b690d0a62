"""Points as requests: JSON bytes for HTTP, messages for gRPC, each below Qdrant's size limit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson
from qdrant_client import grpc
from qdrant_client.conversions.conversion import RestToGrpc, payload_to_grpc

from ultimate_embedder.export.points_file import Batch
from ultimate_embedder.types import UNNAMED

REQUEST_BYTES = 16 << 20  # half of Qdrant's default limit
NUMBER_BYTES = 16  # a float32 in JSON, at most


def json_requests(batch: Batch) -> Iterator[bytes]:
    """Yield the bodies of HTTP requests.

    Written here and not by the client, whose models turn each number into a Python object first. orjson writes the
    shortest decimals that round-trip to the same float32.
    """
    ids, vectors, payloads = batch
    dumped = [dump_payload(each) for each in payloads]
    for part in _within_limit(
        [len(each) for each in dumped], NUMBER_BYTES * sum(each.shape[1] for each in vectors.values())
    ):
        arrays = {name: each[part] for name, each in vectors.items()}
        written = orjson.dumps(arrays.get(UNNAMED, arrays), option=orjson.OPT_SERIALIZE_NUMPY)
        yield b'{"batch":{"ids":%s,"vectors":%s,"payloads":[%s]}}' % (
            orjson.dumps(ids[part]),
            written,
            b",".join(dumped[part]),
        )


def grpc_requests(target: str, batch: Batch) -> Iterator[Any]:
    """Yield gRPC messages."""
    ids, vectors, payloads = batch
    sizes = [len(dump_payload(each)) for each in payloads]
    for part in _within_limit(sizes, 4 * sum(each.shape[1] for each in vectors.values())):
        lists = {name: each[part].tolist() for name, each in vectors.items()}
        rows = lists.get(UNNAMED) or [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
        points = [
            grpc.PointStruct(
                id=grpc.PointId(uuid=each),
                vectors=RestToGrpc.convert_vector_struct(row),
                payload=payload_to_grpc(payload),
            )
            for each, row, payload in zip(ids[part], rows, payloads[part], strict=True)
        ]
        yield grpc.UpsertPoints(collection_name=target, wait=True, points=points)


def dump_payload(payload: dict[str, Any]) -> bytes:
    """A payload as JSON."""
    try:
        return orjson.dumps(payload)
    except TypeError:  # integers beyond 64 bits, lone surrogates or deep nesting, which only json can write
        return json.dumps(payload).encode()


def _within_limit(payload_bytes: list[int], vector_bytes: int) -> Iterator[slice]:
    """Split a batch into requests below the limit; a single point may exceed it."""
    start, size = 0, 0
    for row, each in enumerate(payload_bytes):
        more = each + vector_bytes
        if size + more > REQUEST_BYTES and row > start:
            yield slice(start, row)
            start, size = row, 0
        size += more
    yield slice(start, len(payload_bytes))
