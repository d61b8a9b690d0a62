"""What an upload would do: ours and theirs compared, nothing changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from ultimate_embedder.export.points_file import Batch
from ultimate_embedder.export.server.calls import RECORD_KEY, Server
from ultimate_embedder.export.server.requests import dump_payload, grpc_requests, json_requests


def request_bytes(target: str, batch: Batch, *, over_grpc: bool) -> int:
    """The size of the requests that send a batch."""
    if over_grpc:
        return sum(message.ByteSize() for message in grpc_requests(target, batch))
    return sum(map(len, json_requests(batch)))


def compare(server: Server, target: str, batch: Batch) -> tuple[int, int]:
    """How many points of a batch are on the server, and how many of these have another payload there.

    Vectors need no comparison: in a collection of the same origin they follow from the text, which is in the payload.
    """
    ids, _, payloads = batch
    body = {"ids": ids, "with_payload": True, "with_vector": False}
    theirs = server.ask("read points", "POST", "/points", target, body, read=_payloads)
    ours = {each: orjson.loads(dump_payload(payload)) for each, payload in zip(ids, payloads, strict=True)}
    there = [each for each in ours if each in theirs]
    return len(there), sum(ours[each] != theirs[each] for each in there)


def _payloads(found: Any) -> dict[str, dict[str, Any]]:
    """The payload of each point, without the mark that a server without metadata for collections needs."""
    payloads = {}
    for each in found:
        payload = each.get("payload") or {}
        if not isinstance(payload, Mapping):
            raise TypeError
        payloads[str(each["id"])] = {name: value for name, value in payload.items() if name != RECORD_KEY}
    return payloads
