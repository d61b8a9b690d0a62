"""`points.jsonl`: one Qdrant point per line, with id, vector and payload.

A sparse vector is `{"indices": [...], "values": [...]}`, beside the dense ones by name; an unnamed one is then "".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson

from ultimate_embedder.export.format import ExportFormat, ExportSize
from ultimate_embedder.export.points import Points
from ultimate_embedder.files import atomic_file

FILE_NAME = "points.jsonl"


def write(points: Points, path: Path) -> None:
    """Write every point as a line of JSON."""
    with atomic_file(path) as file:
        for block in points.blocks():
            for row in range(len(block)):
                # orjson is fast, and writes the shortest decimals that round-trip to the same float32
                vector = orjson.dumps(block.vector(row), option=orjson.OPT_SERIALIZE_NUMPY)
                payload = _dump(block.payload(row))
                identifier = block.point_ids[row].encode()
                file.write(b'{"id":"%s","vector":%s,"payload":%s}\n' % (identifier, vector, payload))


def _dump(payload: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(payload)
    except TypeError:  # integers beyond 64 bits or lone surrogates, which only json can write
        return json.dumps(payload, ensure_ascii=False).encode()


def _size(size: ExportSize) -> int:
    # a float32 takes 12 characters, more or less, and an index of a sparse vector 8
    return 3 * size.vector_bytes + size.json_bytes + 5 * size.sparse_bytes // 2


# not by default: vectors as text are large and slow to write
EXPORT = ExportFormat(kind="jsonl", file_name=lambda vectors: FILE_NAME, write=write, size=_size, by_default=False)
