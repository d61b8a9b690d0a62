from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ultimate_embedder.chunks import load_chunks
from ultimate_embedder.chunks.read import read_records
from ultimate_embedder.events import ChunkRejected, Event
from ultimate_embedder.types import Collection, Rejected

NAME = "a_chunks.json"
TWO = [{"text": "one", "n": 1}, {"text": "two", "n": 2}]
READ_TWO = [(0, TWO[0]), (1, TWO[1])]
AGAIN = "Run your chunker again to rewrite the file."

Read = Callable[..., list[Any]]
Load = Callable[..., tuple[list[str], list[Rejected]]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read_file(content: bytes, name: str = NAME) -> list[Any]:
        (tmp_path / name).write_bytes(content)
        return list(read_records(tmp_path / name, name))

    return read_file


@pytest.fixture
def load(tmp_path: Path, seen: list[Event]) -> Load:
    def load_file(content: bytes, name: str = NAME) -> tuple[list[str], list[Rejected]]:
        (tmp_path / name).write_bytes(content)
        collection = Collection("docs", tmp_path, (tmp_path / name,))
        table = load_chunks(collection, tmp_path / "spool", seen.append).table
        rejected = [event.rejected for event in seen if isinstance(event, ChunkRejected)]
        return [text for block in table.blocks() for text in block.texts], rejected

    return load_file


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def as_lines(records: list[Any], end: str = "\n") -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + end for record in records).encode()
