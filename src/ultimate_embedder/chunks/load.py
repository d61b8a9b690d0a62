"""Load the records of a collection: validate each, make ids unique, and write them to a table on disk."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ultimate_embedder.chunks.read import read_records
from ultimate_embedder.chunks.table import ChunkTable, ChunkTableWriter
from ultimate_embedder.events import ChunkRejected, ChunksLoaded, Emit, IdDuplicated, Warned
from ultimate_embedder.terminal import printable, valid_unicode
from ultimate_embedder.types import Chunk, Collection, DuplicateId, Rejected

ID_KEYS = ("chunk_id", "id", "_id")
DEEPEST_NESTING = 100  # Qdrant cannot read back payloads of more than about 120 levels


@dataclass(frozen=True)
class LoadedChunks:
    """The chunks of a collection, in load order, and how many records were found and rejected."""

    table: ChunkTable
    found: int
    rejected: int


def load_chunks(collection: Collection, spool: Path, emit: Emit) -> LoadedChunks:
    """Read all chunk files of a collection into a table at `spool`; emits an event for every rejected record."""
    started = time.perf_counter()
    rejected = 0
    ids = _UniqueIds()
    with ChunkTableWriter(spool) as writer:
        for item in _chunks(collection, emit):
            if isinstance(item, Rejected):
                rejected += 1
                emit(ChunkRejected(collection=collection.name, rejected=item))
                continue
            chunk, duplicate = ids.make_unique(item)
            if duplicate:
                emit(IdDuplicated(collection=collection.name, duplicate=duplicate))
            writer.add(chunk)
        table = writer.finish()
    emit(
        ChunksLoaded(
            collection=collection.name,
            found=len(table) + rejected,
            loaded=len(table),
            rejected=rejected,
            distinct_texts=table.distinct_texts(),
            seconds=time.perf_counter() - started,
        )
    )
    return LoadedChunks(table, len(table) + rejected, rejected)


def _chunks(collection: Collection, emit: Emit) -> Iterator[Chunk | Rejected]:
    for path in collection.files:
        name = valid_unicode(path.relative_to(collection.folder).as_posix())
        for item in read_records(path, name):
            yield item if isinstance(item, Rejected) else _check(item[1], name, item[0], collection, emit)


def _check(value: Any, file: str, position: int, collection: Collection, emit: Emit) -> Chunk | Rejected:
    """Turn one record into a chunk, or into the reason why it is rejected."""
    record = {"text": value} if isinstance(value, str) else value
    if not isinstance(record, dict):
        return Rejected(file, position, f"the record is {_kind(value)}, not an object or a string")
    if "text" not in record:
        keys = printable(", ".join(list(record)[:8])) or "none"
        return Rejected(file, position, f'the record has no "text"; its keys are: {keys}')
    text = record["text"]
    if not isinstance(text, str):
        return Rejected(file, position, f"the text is {_kind(text)}, not a string")
    if not text.strip():
        return Rejected(file, position, "the text is empty" if not text else "the text is only whitespace")
    rest = {key: value for key, value in record.items() if key != "text"}
    record_json = _as_json(text, rest)
    if record_json is None:  # not storable as it is: find out why
        if problem := _unencodable(text, rest):
            return Rejected(file, position, problem)
        if not_finite := [key for key, value in rest.items() if _has_nan(value)]:
            rest = _without_nan(rest)
            where = f"{file} record {position}, {', '.join(not_finite)}"
            message = f"{where}: NaN or infinity was replaced by null, as JSON has no such number"
            emit(Warned(collection=collection.name, message=message))
        record_json = json.dumps(rest, ensure_ascii=False)
    return Chunk(_own_id(rest) or _content_id(file, text), text, record_json, file, position)


def _as_json(text: str, record: dict[str, Any]) -> str | None:
    """The record as JSON; None if it or the text may not be storable as UTF-8 JSON."""
    try:
        text.encode()
        plain = json.dumps(record, ensure_ascii=False, allow_nan=False)
        plain.encode()
    except (ValueError, RecursionError):
        return None
    return plain if plain.count("{") + plain.count("[") <= DEEPEST_NESTING else None


def _own_id(record: dict[str, Any]) -> str | None:
    metadata = record.get("metadata")
    for place in (metadata if isinstance(metadata, dict) else {}, record):
        for key in ID_KEYS:
            value = place.get(key)
            if isinstance(value, int) and not isinstance(value, bool):
                return str(value)
            if isinstance(value, str) and value.strip():
                return value
    return None


def _content_id(file: str, text: str) -> str:
    """An id from file and text, which does not change when the text moves within its file."""
    return hashlib.sha256(f"{file}\0{text}".encode()).hexdigest()[:24]


class _UniqueIds:
    """Renames duplicate ids within a collection; the first chunk with an id keeps it."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._file_of: dict[str, str] = {}

    def make_unique(self, chunk: Chunk) -> tuple[Chunk, DuplicateId | None]:
        free = next(candidate for candidate in self._candidates(chunk) if candidate not in self._taken)
        self._file_of.setdefault(chunk.id, chunk.file)
        self._taken.add(free)
        if free == chunk.id:
            return chunk, None
        renamed = Chunk(free, chunk.text, chunk.record, chunk.file, chunk.position)
        return renamed, DuplicateId(chunk.id, chunk.file, chunk.position, free)

    def _candidates(self, chunk: Chunk) -> Iterator[str]:
        yield chunk.id
        if self._file_of.get(chunk.id) != chunk.file:
            yield f"{chunk.id}@{chunk.file}"
        for suffix in itertools.chain([""], (f"+{number}" for number in itertools.count(2))):
            yield f"{chunk.id}@{chunk.file}#{chunk.position}{suffix}"


def _unencodable(text: str, record: dict[str, Any]) -> str | None:
    """Why this record cannot be stored as UTF-8 JSON, or None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"the text is not valid Unicode at character {error.start}: {_bad_character(error)}"
    try:
        if _depth(record) > DEEPEST_NESTING:
            return f"the metadata is nested more than {DEEPEST_NESTING} levels deep"
        for word in _strings(record):
            word.encode()
    except UnicodeEncodeError as error:
        return f"the metadata is not valid Unicode: {_bad_character(error)}"
    return None


def _bad_character(error: UnicodeEncodeError) -> str:
    code = ord(error.object[error.start])
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: a byte that was not UTF-8
        return f"byte 0x{code - 0xDC00:02x} is not UTF-8"
    return f"lone surrogate U+{code:04X}"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        nested: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                nested.extend(item.values())
            elif isinstance(item, list):
                nested.extend(item)
        level = nested
    return deepest - 1


def _has_nan(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_has_nan(item) for item in items)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")
