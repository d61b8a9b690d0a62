"""Split chunks whose text is too long into several, each with its own segment of the text."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from ultimate_embedder.chunks.load import LoadedChunks
from ultimate_embedder.chunks.table import ChunkTable, ChunkTableWriter, TableRows
from ultimate_embedder.types import Chunk, Segment, SplitCounts

SPLIT_KEY = "split_from"


class TextSplitter(Protocol):
    """Knows which texts are too long, and where to cut them."""

    def overlong(self, texts: Sequence[str]) -> np.ndarray:
        """Which texts are too long."""
        ...

    def split(self, text: str) -> tuple[Segment, ...]:
        """The segments of a text that is too long."""
        ...


def split_chunks(loaded: LoadedChunks, spool: Path, splitter: TextSplitter) -> LoadedChunks:
    """The same chunks in a new table at `spool`, with those that are too long split; or as they are if none is.

    The segments of chunk `ID` are `ID#1`, `ID#2` and so on, with more `#` where another chunk has such an id. Their
    records say under `split_from` which chunk they are from, and which of its characters they have.
    """
    too_long = [splitter.overlong(block.texts) for block in loaded.table.blocks()]
    if not any(mask.any() for mask in too_long):
        return loaded
    ids = _SegmentIds(loaded.table)
    chunks = segments = 0
    with ChunkTableWriter(spool) as writer:
        for block, mask in zip(loaded.table.blocks(), too_long, strict=True):
            for row, is_long in enumerate(mask):
                chunk = _chunk(block, row)
                parts = splitter.split(chunk.text) if is_long else ()
                if len(parts) < 2:  # nothing but white space is beyond the limit
                    writer.add(chunk)
                    continue
                chunks, segments = chunks + 1, segments + len(parts)
                for number, part_id in enumerate(ids.take(chunk.id, len(parts)), 1):
                    writer.add(_part(chunk, part_id, parts[number - 1], number, len(parts)))
        table = writer.finish()
    loaded.table.remove()
    return dataclasses.replace(loaded, table=table, split=SplitCounts(chunks, segments))


class _SegmentIds:
    """Gives segments ids that no chunk of the table has."""

    def __init__(self, table: ChunkTable) -> None:
        self._taken = {chunk_id for block in table.blocks() for chunk_id in block.ids}

    def take(self, chunk_id: str, count: int) -> list[str]:
        hashes = "#"
        while not self._taken.isdisjoint(ids := [f"{chunk_id}{hashes}{number}" for number in range(1, count + 1)]):
            hashes += "#"
        self._taken.update(ids)
        return ids


def _chunk(block: TableRows, row: int) -> Chunk:
    return Chunk(block.ids[row], block.texts[row], block.records[row], block.files[row], block.positions[row])


def _part(chunk: Chunk, part_id: str, segment: Segment, number: int, count: int) -> Chunk:
    record = json.loads(chunk.record)
    origin = {"chunk_id": chunk.id, "segment": number, "segments": count, "start": segment.start, "end": segment.end}
    if SPLIT_KEY in record:  # the chunk is itself a segment, of an earlier run's exports
        origin[SPLIT_KEY] = record[SPLIT_KEY]
    if "chunk_id" in record:  # a payload has the id of the point under this name
        record["chunk_id"] = part_id
    record[SPLIT_KEY] = origin
    text = chunk.text[segment.start : segment.end]
    return Chunk(part_id, text, json.dumps(record, ensure_ascii=False), chunk.file, chunk.position)
