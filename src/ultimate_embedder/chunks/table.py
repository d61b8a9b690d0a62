"""The chunks of one collection in a file: written once, then read in blocks, to bound memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from ultimate_embedder.types import Chunk

BLOCK_ROWS = 1024
BLOCK_CHARACTERS = 8 << 20  # a block closes early when its texts or records are long

_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.large_string()),
        ("record", pa.large_string()),
        ("file", pa.string()),
        ("position", pa.int64()),
    ]
)


def text_key(text: str) -> tuple[int, int]:
    """A 128-bit hash of a text; equal texts have equal keys."""
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")


@dataclass(frozen=True)
class TableRows:
    """A block of consecutive rows; `records` are JSON, parsed only when needed."""

    start: int
    ids: list[str]
    texts: list[str]
    records: list[str]
    files: list[str]
    positions: list[int]


class ChunkTable:
    """Chunks in load order. Only their keys are in memory: 16 bytes per chunk."""

    def __init__(self, path: Path, keys: np.ndarray, starts: list[int], digest: str) -> None:
        self.path = path
        self.keys = keys
        self.digest = digest
        """Hash of all rows: tables with equal digests have equal rows."""
        self._starts = starts

    def __len__(self) -> int:
        return len(self.keys)

    def distinct_texts(self) -> int:
        """The number of distinct texts."""
        return len(np.unique(self.keys, axis=0))

    def blocks(self, rows: np.ndarray | None = None) -> Iterator[TableRows]:
        """Yield the table block by block; with `rows` (a mask), skip blocks without a marked row."""
        with pa.OSFile(str(self.path)) as file:
            reader = pa.ipc.open_file(file)
            for number, start in enumerate(self._starts):
                stop = self._starts[number + 1] if number + 1 < len(self._starts) else len(self)
                if rows is not None and not rows[start:stop].any():
                    continue
                columns = {name: column.to_pylist() for name, column in _columns(reader.get_batch(number))}
                yield TableRows(
                    start=start,
                    ids=columns["id"],
                    texts=columns["text"],
                    records=columns["record"],
                    files=columns["file"],
                    positions=columns["position"],
                )

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)


class ChunkTableWriter:
    """Writes a `ChunkTable`. A context manager: the file of a failed load is deleted."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._writer = pa.ipc.new_file(str(path), _SCHEMA)
        self._pending: list[Chunk] = []
        self._pending_characters = 0
        self._keys: list[np.ndarray] = []
        self._starts: list[int] = []
        self._rows = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._finished = False

    def __enter__(self) -> ChunkTableWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._finished:
            self._writer.close()
            self._path.unlink(missing_ok=True)

    def add(self, chunk: Chunk) -> None:
        """Append one chunk."""
        self._pending.append(chunk)
        self._pending_characters += len(chunk.id) + len(chunk.text) + len(chunk.record)
        if len(self._pending) >= BLOCK_ROWS or self._pending_characters >= BLOCK_CHARACTERS:
            self._write_block()

    def finish(self) -> ChunkTable:
        """Close the file and open the table for reading."""
        if self._pending:
            self._write_block()
        self._writer.close()
        self._finished = True
        keys = np.concatenate(self._keys) if self._keys else np.empty((0, 2), np.uint64)
        return ChunkTable(self._path, keys, self._starts, self._digest.hexdigest())

    def _write_block(self) -> None:
        block = self._pending
        columns: list[list[Any]] = [
            [chunk.id for chunk in block],
            [chunk.text for chunk in block],
            [chunk.record for chunk in block],
            [chunk.file for chunk in block],
            [chunk.position for chunk in block],
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
        for row in zip(*columns, strict=True):
            self._digest.update("\0".join(map(str, row)).encode())
        self._keys.append(np.array([text_key(chunk.text) for chunk in block], np.uint64))
        self._starts.append(self._rows)
        self._rows += len(block)
        self._pending, self._pending_characters = [], 0


def _columns(batch: pa.RecordBatch) -> Iterator[tuple[str, Any]]:
    yield from zip(batch.schema.names, batch.columns, strict=True)
