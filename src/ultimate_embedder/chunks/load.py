"""Load the records of a collection: validate each, make ids unique, and write them to a table on disk."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ultimate_embedder.chunks.field_use import FieldUse
from ultimate_embedder.chunks.fields import FieldReader
from ultimate_embedder.chunks.formats import is_tabular
from ultimate_embedder.chunks.read import read_records
from ultimate_embedder.chunks.record import check_record
from ultimate_embedder.chunks.table import ChunkTable, ChunkTableWriter
from ultimate_embedder.config import FieldChoice
from ultimate_embedder.events import (
    ChunkRejected,
    ChunksLoaded,
    ChunksRead,
    Emit,
    IdDuplicated,
    Interval,
    Warned,
)
from ultimate_embedder.terminal import valid_unicode
from ultimate_embedder.types import Chunk, Collection, DuplicateId, Rejected, SplitCounts

LOOK_RECORDS = 256  # read before somebody looks at the clock


@dataclass(frozen=True)
class LoadedChunks:
    """The chunks of a collection, in load order, and how many records were found and rejected."""

    table: ChunkTable
    found: int
    rejected: int
    split: SplitCounts = field(default_factory=SplitCounts)
    """Those that were too long, if they were split."""


def load_chunks(collection: Collection, spool: Path, emit: Emit, choice: FieldChoice | None = None) -> LoadedChunks:
    """Read all chunk files of a collection into a table at `spool`; emits an event for every rejected record.

    Raises UsageError if no record has a field that was chosen for ids, metadata or titles.
    """
    started = time.perf_counter()
    rejected = 0
    ids = _UniqueIds()
    use = FieldUse(FieldReader(choice))
    with ChunkTableWriter(spool) as writer:
        for item in _telling(collection, _chunks(collection, use, emit), emit):
            if isinstance(item, Rejected):
                rejected += 1
                emit(ChunkRejected(collection=collection.name, rejected=item))
                continue
            chunk, duplicate = ids.make_unique(item)
            if duplicate:
                emit(IdDuplicated(collection=collection.name, duplicate=duplicate))
            writer.add(chunk)
        use.require()
        table = writer.finish()
    for message in use.warnings():
        emit(Warned(collection=collection.name, message=message))
    emit(
        ChunksLoaded(
            collection=collection.name,
            found=len(table) + rejected,
            loaded=len(table),
            rejected=rejected,
            distinct_texts=table.distinct_texts(),
            seconds=time.perf_counter() - started,
            fields=use.fields(),
            digest=table.digest,
        )
    )
    return LoadedChunks(table, len(table) + rejected, rejected)


def _telling(collection: Collection, items: Iterable[Chunk | Rejected], emit: Emit) -> Iterator[Chunk | Rejected]:
    """The same items; tells now and then how many there were."""
    interval, files, file = Interval(), 0, None
    for records, item in enumerate(items):
        if item.file != file:
            files, file = files + (file is not None), item.file
        if not records % LOOK_RECORDS and interval.is_over():
            emit(ChunksRead(collection=collection.name, records=records, files=files))
        yield item


def _chunks(collection: Collection, use: FieldUse, emit: Emit) -> Iterator[Chunk | Rejected]:
    for path in collection.files:
        name = valid_unicode(path.relative_to(collection.folder).as_posix())
        columns_checked = not is_tabular(path)
        replaced: dict[str, tuple[str, int]] = {}  # what was done: where first, and how often
        for item in read_records(path, name):
            if isinstance(item, Rejected):
                yield item
                continue
            position, value = item
            if not columns_checked and use.reader.lacks_text(value):
                yield Rejected(name, None, use.reader.no_text(value, "columns"))
                break
            columns_checked = True
            checked = check_record(value, name, position, use.reader)
            use.add(checked, value)
            for replacement in checked.replaced:
                where = f"{name} record {position}, {replacement.keys}"
                first, times = replaced.get(replacement.what, (where, 0))
                replaced[replacement.what] = first, times + 1
            yield checked.chunk
        for what, (first, times) in replaced.items():
            others = f", and in {times - 1:,} more records of the file" if times > 1 else ""
            emit(Warned(collection=collection.name, message=f"{first}: {what}{others}"))


class _UniqueIds:
    """Renames duplicate ids within a collection; the first chunk with an id keeps it."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._file_of: dict[str, str] = {}

    def make_unique(self, chunk: Chunk) -> tuple[Chunk, DuplicateId | None]:
        file = self._file_of.get(chunk.id)
        self._file_of.setdefault(chunk.id, chunk.file)
        if chunk.id not in self._taken:
            self._taken.add(chunk.id)
            return chunk, None
        free = next(candidate for candidate in _other_ids(chunk, file) if candidate not in self._taken)
        self._taken.add(free)
        renamed = Chunk(free, chunk.text, chunk.record, chunk.file, chunk.position)
        return renamed, DuplicateId(chunk.id, chunk.file, chunk.position, free)


def _other_ids(chunk: Chunk, file: str | None) -> Iterator[str]:
    """Ids for a chunk whose own is taken; `file` is that of the first chunk which had it."""
    if file != chunk.file:
        yield f"{chunk.id}@{chunk.file}"
    for suffix in itertools.chain([""], (f"+{number}" for number in itertools.count(2))):
        yield f"{chunk.id}@{chunk.file}#{chunk.position}{suffix}"
