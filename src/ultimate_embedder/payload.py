"""The payload of a point, made from the parts of a chunk, and its checksum. Imports next to nothing."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import orjson

SUM_BYTES = 8


def payload(chunk_id: str, collection: str, file: str, text: str, record: dict[str, Any]) -> dict[str, Any]:
    """The Qdrant payload: the unchanged record, its text, and where it is from."""
    return {"chunk_id": chunk_id, "collection": collection, "file": file, **record, "text": text}


def parse_record(content: str) -> dict[str, Any]:
    """The record of a chunk from its JSON. `chunks/record.py` has made sure that its integers fit into 64 bits."""
    try:
        record: dict[str, Any] = orjson.loads(content)
    except orjson.JSONDecodeError:  # what only json reads: NaN, lone surrogates
        record = json.loads(content)
    return record


def payload_sum(made: Any) -> bytes:
    """A checksum of a payload that does not depend on the order of its keys."""
    try:
        content = orjson.dumps(made, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits, which Edge stores as floats
        plain = json.loads(json.dumps(made), parse_int=_as_edge_stores)
        content = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(content, digest_size=SUM_BYTES).digest()


def _as_edge_stores(digits: str) -> int | float:
    number = int(digits)
    return number if -(2**63) <= number < 2**64 else float(number)
