"""The documents of a collection: its chunks, or what chunks with the same value of a field make together."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ultimate_embedder.chunks import SPLIT_KEY, text_key
from ultimate_embedder.errors import UsageError
from ultimate_embedder.export import PointsFile
from ultimate_embedder.find.evaluate.queries import as_id
from ultimate_embedder.find.evaluate.records import MOST_EXAMPLES, shorten_example
from ultimate_embedder.output import CollectionOutput

READ_ROWS = 1024
FILE_FIELD = "file"
MOST_RECORDS = 2_000  # that are searched for a field with the ids of the judgements
DEEPEST = 4
AGAIN = "Run the same embed command again with --export parquet: vectors that are stored are not computed again."


@dataclass(frozen=True)
class Documents:
    """Chunks by row, the document that each belongs to, and the documents that were asked for by id."""

    keys: np.ndarray
    """The key of each chunk's text: two numbers per row."""
    document: np.ndarray | None
    """The number of each chunk's document; None if every chunk is one, with the number of its row."""
    count: int
    """The number of documents."""
    number_of: Mapping[str, int]
    """The numbers of those documents whose ids were asked for."""
    examples: tuple[str, ...] = ()
    """The first ids, for messages."""
    notes: tuple[str, ...] = ()

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return len(self.keys)


def open_points(collection: CollectionOutput) -> PointsFile:
    """The parquet export of a collection, which has its ids and texts."""
    if not collection.points_file.exists():
        raise UsageError(f"{collection.folder} has no {collection.points_file.name}, with ids and texts. {AGAIN}")
    return PointsFile.open(collection.points_file)


def read_documents(points: PointsFile, wanted: Collection[str], doc_field: str | None) -> Documents:
    """Read ids and texts. A document is a chunk, with all its segments, or all chunks with one value of `doc_field`."""
    reader = _Reader(frozenset(wanted), doc_field)
    for batch in points.chunk_batches(READ_ROWS, ["chunk_id", "text", "file", "metadata", "extra"]):
        reader.add(batch)
    if doc_field is not None and not reader.with_field:
        raise UsageError(f"no chunk of {points.collection} has a field {doc_field}. {_known_fields(points)}")
    return reader.documents(points)


@dataclass
class _Reader:
    wanted: frozenset[str]
    doc_field: str | None
    keys: list[np.ndarray] = field(default_factory=list)
    document: list[np.ndarray] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    """Of documents that may have several chunks."""
    found: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    missing = 0
    with_field = 0
    count = 0

    def add(self, batch: Mapping[str, list[Any]]) -> None:
        self.keys.append(np.array([text_key(text) for text in batch["text"]], np.uint64).reshape(-1, 2))
        numbers = []
        for row in range(len(batch["text"])):
            name, shared = self._name(batch, row)
            number = self.numbers.get(name) if shared else None
            if number is None:
                number, self.count = self.count, self.count + 1
                if shared:
                    self.numbers[name] = number
                if name in self.wanted:
                    self.found.setdefault(name, number)
                if len(self.examples) < MOST_EXAMPLES:
                    self.examples.append(shorten_example(name))
            numbers.append(number)
        self.document.append(np.array(numbers, np.int32))

    def _name(self, batch: Mapping[str, list[Any]], row: int) -> tuple[str, bool]:
        """The id of a chunk's document, and whether other chunks may belong to it."""
        chunk_id = str(batch["chunk_id"][row])
        if self.doc_field is not None:
            value = as_id(_value(self.doc_field, batch, row))
            if value is not None:
                self.with_field += 1
                return value, True
            self.missing += 1
            if len(self.without) < MOST_EXAMPLES:
                self.without.append(shorten_example(chunk_id))
        elif SPLIT_KEY in batch["extra"][row]:  # cheap to see; parsed only then
            origin = _record(batch, row).get(SPLIT_KEY)
            if isinstance(origin, Mapping) and as_id(origin.get("chunk_id")):
                return str(origin["chunk_id"]), True
        return chunk_id, False

    def documents(self, points: PointsFile) -> Documents:
        notes = []
        if self.missing:
            notes.append(
                f"{self.missing:,} of {points.points:,} chunks have no {self.doc_field} "
                f"({', '.join(self.without)}): each is a document of its own"
            )
        grouped = self.count < points.points
        return Documents(
            keys=np.concatenate([np.empty((0, 2), np.uint64), *self.keys]),
            document=np.concatenate(self.document) if grouped else None,
            count=self.count,
            number_of=self.found,
            examples=tuple(self.examples),
            notes=tuple(notes),
        )


def _record(batch: Mapping[str, list[Any]], row: int) -> dict[str, Any]:
    """The record of a chunk without its text."""
    record = _parsed(batch["extra"][row])
    metadata = _parsed(batch["metadata"][row]) if batch["metadata"][row] is not None else {}
    return {**record, "metadata": metadata, FILE_FIELD: batch["file"][row]}


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _value(path: str, batch: Mapping[str, list[Any]], row: int) -> Any:
    record = _record(batch, row)
    found = _follow(record, path)
    return found if found is not None else _follow(record["metadata"], path)


def _follow(record: Any, path: str) -> Any:
    if isinstance(record, Mapping) and path in record:  # a key may have a dot in it
        return record[path]
    first, dot, rest = path.partition(".")
    return _follow(record.get(first), rest) if dot and isinstance(record, Mapping) else None


def read_records(points: PointsFile, columns: Collection[str] = ()) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield id, record and text of every chunk."""
    for batch in points.chunk_batches(READ_ROWS, ["chunk_id", "text", "file", "metadata", "extra"]):
        for row, chunk_id in enumerate(batch["chunk_id"]):
            yield str(chunk_id), _record(batch, row), batch["text"][row]


def suggest_field(points: PointsFile, wanted: Collection[str]) -> str | None:
    """A field of the first chunks whose values are ids of the judgements; None if there is none."""
    matches: dict[str, set[str]] = {}
    for number, (_, record, _) in enumerate(read_records(points)):
        if number == MOST_RECORDS:
            break
        for path, value in _scalars(record):
            if value in wanted:
                matches.setdefault(path, set()).add(value)
    return max(matches, key=lambda path: len(matches[path]), default=None)


def _known_fields(points: PointsFile) -> str:
    for _, record, _ in read_records(points):
        names = list(dict.fromkeys(path for path, _ in _scalars(record)))
        return f"The first chunk has {', '.join(map(shorten_example, names[:12]))}."
    return ""


def _scalars(record: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    for name, value in record.items():
        if isinstance(value, Mapping) and depth < DEEPEST:
            yield from _scalars(value, f"{before}{name}.", depth + 1)
        elif (found := as_id(value)) is not None:
            yield f"{before}{name}", found
