"""Points as requests: JSON bytes for HTTP, messages for gRPC, each below Qdrant's size limit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson
from qdrant_client import grpc
from qdrant_client.conversions.conversion import RestToGrpc, payload_to_grpc
from qdrant_client.http import models

from ultimate_embedder.export.points_file import Batch
from ultimate_embedder.sparse import SparseVectors
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
    sizes = np.array([len(each) for each in dumped]) + NUMBER_BYTES * _numbers(vectors, len(ids))
    for part in _within_limit(sizes.tolist()):
        arrays = {name: _as_json(each, part) for name, each in vectors.items()}
        columns = arrays[UNNAMED] if list(arrays) == [UNNAMED] else arrays
        written = orjson.dumps(columns, option=orjson.OPT_SERIALIZE_NUMPY)
        yield b'{"batch":{"ids":%s,"vectors":%s,"payloads":[%s]}}' % (
            orjson.dumps(ids[part]),
            written,
            b",".join(dumped[part]),
        )


def grpc_requests(target: str, batch: Batch) -> Iterator[Any]:
    """Yield gRPC messages."""
    ids, vectors, payloads = batch
    sizes = np.array([len(dump_payload(each)) for each in payloads]) + 4 * _numbers(vectors, len(ids))
    for part in _within_limit(sizes.tolist()):
        lists = {name: _as_message(each, part) for name, each in vectors.items()}
        named = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
        rows = lists[UNNAMED] if list(lists) == [UNNAMED] else named
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


def _numbers(vectors: Mapping[str, np.ndarray | SparseVectors], points: int) -> np.ndarray:
    """How many numbers each point has; an index of a sparse vector is one too."""
    numbers = np.zeros(points, np.int64)
    for each in vectors.values():
        numbers += 2 * each.lengths if isinstance(each, SparseVectors) else each.shape[1]
    return numbers


def _as_json(vectors: np.ndarray | SparseVectors, part: slice) -> Any:
    if not isinstance(vectors, SparseVectors):
        return vectors[part]
    return [dict(zip(("indices", "values"), vectors[row], strict=True)) for row in range(part.start, part.stop)]


def _as_message(vectors: np.ndarray | SparseVectors, part: slice) -> list[Any]:
    """Vectors as the client turns them into messages."""
    if not isinstance(vectors, SparseVectors):
        return list(vectors[part].tolist())
    rows = (vectors[row] for row in range(part.start, part.stop))
    return [models.SparseVector(indices=indices.tolist(), values=values.tolist()) for indices, values in rows]


def _within_limit(point_bytes: list[int]) -> Iterator[slice]:
    """Split a batch into requests below the limit; a single point may exceed it."""
    start, size = 0, 0
    for row, more in enumerate(point_bytes):
        if size + more > REQUEST_BYTES and row > start:
            yield slice(start, row)
            start, size = row, 0
        size += more
    yield slice(start, len(point_bytes))
