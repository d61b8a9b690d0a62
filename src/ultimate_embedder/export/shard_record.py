"""What was written into a Qdrant shard: a few bytes per point, kept in its folder.

Edge rewrites files of a shard that is opened, and its users may add points and payload indexes. So a shard whose bytes
differ is compared with this record, point by point, before it is called damaged.
"""

from __future__ import annotations

import hashlib
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ultimate_embedder.edge import End, Records
from ultimate_embedder.export.shard import read_shard
from ultimate_embedder.payload import payload_sum
from ultimate_embedder.sparse import SparseVectors, sparse_from_rows
from ultimate_embedder.vectors import KeyIndex

if TYPE_CHECKING:
    from ultimate_embedder.export.format import NamedVectors, PointBatches

RECORD_NAME = "written-points.npz"
SIGNS = 0x9E3779B97F4A7C15  # an odd number with bits all over
SAME = 1e-4  # Edge normalises vectors: the last digits of a component may differ


@dataclass(frozen=True)
class ShardChanges:
    """How a shard differs from what was written: counts of points, and fields that have got a payload index."""

    added: int
    missing: int
    payloads: int
    vectors: int
    indexes: tuple[str, ...]

    @property
    def ours_intact(self) -> bool:
        """Whether every point that was written is there and unchanged."""
        return not (self.missing or self.payloads or self.vectors)

    def __str__(self) -> str:
        words = [f"payload index on {name}" for name in self.indexes]
        counts = {
            "added": self.added,
            "missing": self.missing,
            "with another payload": self.payloads,
            "with another vector": self.vectors,
        }
        words += [f"{count} {'point' if count == 1 else 'points'} {what}" for what, count in counts.items() if count]
        return "; ".join(words)


@dataclass(frozen=True)
class WrittenPoints:
    """Id and checksums of every point that was written."""

    names: tuple[str, ...]
    """Of the vectors."""
    ids: np.ndarray
    """128 bits each."""
    payloads: np.ndarray
    vectors: np.ndarray
    """A number for each point and name."""


class PointRecord:
    """Collects what is written."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._ids = [np.empty((0, 2), np.uint64)]
        self._vectors = [np.empty((0, len(self._names)), np.float32)]

    def add(self, ids: Sequence[str], vectors: NamedVectors) -> None:
        """Note some points; vectors by name, a row per point."""
        self._ids.append(_keys(ids))
        self._vectors.append(np.stack([_sums(vectors[name]) for name in self._names], axis=1))

    def written(self, sums: bytes) -> WrittenPoints:
        """Everything that was noted, with the checksums of all payloads, one after the other."""
        ids, vectors = np.concatenate(self._ids), np.concatenate(self._vectors)
        return WrittenPoints(self._names, ids, payload_sums(sums).reshape(len(ids)), vectors)


def write_record(written: WrittenPoints, folder: Path) -> None:
    """Keep the record with the shard."""
    names = np.array(written.names, np.str_)
    np.savez(folder / RECORD_NAME, names=names, ids=written.ids, payloads=written.payloads, vectors=written.vectors)


def read_record(folder: Path) -> WrittenPoints | None:
    """The record of a shard; None if an earlier version wrote it, or if it is damaged."""
    path = folder / RECORD_NAME
    try:
        if not path.is_file():  # a pipe would be waited for
            return None
        with zipfile.ZipFile(path) as parts:
            if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
                return None  # a few bytes could become more than the memory holds
        with np.load(path, allow_pickle=False) as columns:
            names = tuple(map(str, columns["names"].ravel()))
            rows = len(columns["ids"])
            return WrittenPoints(
                names,
                columns["ids"].astype(np.uint64).reshape(rows, 2),
                columns["payloads"].astype(np.uint64).reshape(rows),
                columns["vectors"].astype(np.float32).reshape(rows, len(names)),
            )
    except (OSError, ValueError, EOFError, KeyError, TypeError, MemoryError, zipfile.BadZipFile, zlib.error):
        return None


def find_changes(path: Path, written: WrittenPoints) -> ShardChanges:
    """Compare a shard with what was written; raises `UnreadableError` if it cannot be read."""
    index = KeyIndex()
    index.add(0, written.ids)
    seen = np.zeros(len(written.ids), bool)
    total = payloads = vectors = 0
    indexes: tuple[str, ...] = ()
    for message in read_shard(path):
        if isinstance(message, End):
            indexes = message.indexes
            continue
        places = index.find(_keys(message.ids))
        ours = np.flatnonzero(places >= 0)
        expected = places[ours]
        total += len(message.ids)
        seen[expected] = True
        found = payload_sums(b"".join(payload_sum(message.payloads[row]) for row in ours))
        payloads += int((written.payloads[expected] != found).sum())
        differences = np.abs(_read_vector_sums(message, ours, written.names) - written.vectors[expected])
        vectors += int((~(differences <= SAME)).any(axis=1).sum())  # also where one is missing: NaN
    return ShardChanges(total - int(seen.sum()), int((~seen).sum()), payloads, vectors, indexes)


def record_of(points: PointBatches) -> WrittenPoints | None:
    """The record of these points, for a shard that has none; None if there are no points."""
    record, sums = None, []
    for ids, vectors, payloads in points:
        record = record or PointRecord(vectors)
        record.add(ids, vectors)
        sums += map(payload_sum, payloads)
    return record.written(b"".join(sums)) if record else None


def _keys(ids: Sequence[str]) -> np.ndarray:
    """Point ids as 128 bits: UUIDs, or the numbers of points that others have added."""
    numbers = [int(each) if each.isdigit() else uuid.UUID(each).int for each in ids]
    return np.array([(each >> 64, each & (2**64 - 1)) for each in numbers], np.uint64).reshape(-1, 2)


def payload_sums(content: bytes) -> np.ndarray:
    """Checksums of payloads, one after the other, as numbers."""
    return np.frombuffer(content, ">u8").astype(np.uint64)


def _sums(vectors: np.ndarray | SparseVectors) -> np.ndarray:
    """A number for each vector."""
    return _sparse_sums(vectors) if isinstance(vectors, SparseVectors) else _vector_sums(vectors)


def _sparse_sums(vectors: SparseVectors) -> np.ndarray:
    """A number for each sparse vector: a sum of its values, with signs by their indices; 0 if it is empty."""
    signs = ((vectors.indices.astype(np.uint64) * np.uint64(SIGNS)) >> np.uint64(32) & np.uint64(1)).astype(np.int64)
    values = vectors.values.astype(np.float64)
    signed = SparseVectors(vectors.indptr, vectors.indices, values * (signs * 2 - 1))
    lengths = np.sqrt(SparseVectors(vectors.indptr, vectors.indices, values**2).row_sums)
    # of vectors that agree in all signs only the length would tell which is which: it is added
    return np.asarray(signed.row_sums / np.where(lengths > 0, lengths, 1) + lengths, np.float32)


def _vector_sums(vectors: np.ndarray) -> np.ndarray:
    """A number for each vector, which does not depend on its length: a sum of its components, with fixed signs."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1)
    bits = np.frombuffer(hashlib.shake_128(b"signs").digest(-(-vectors.shape[1] // 8)), np.uint8)
    signs = np.unpackbits(bits)[: vectors.shape[1]].astype(np.float64) * 2 - 1
    return np.asarray(wide @ signs / np.where(lengths, lengths, 1), np.float32)


def _read_vector_sums(message: Records, rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
    sums = np.full((len(rows), len(names)), np.nan, np.float32)  # equal to nothing: a vector that is missing
    for column, name in enumerate(names):
        contents = [message.vectors[row].get(name, b"") for row in rows]
        for length in set(map(len, contents)) - {0}:
            these = [number for number, content in enumerate(contents) if len(content) == length]
            matrix = np.frombuffer(b"".join(contents[each] for each in these), np.float32).reshape(len(these), -1)
            sums[these, column] = _vector_sums(matrix)
        found = [message.sparse[row].get(name) if message.sparse else None for row in rows]
        there = [number for number, each in enumerate(found) if each is not None]
        pairs = [(np.frombuffer(each[0], np.uint32), np.frombuffer(each[1], np.float32)) for each in found if each]
        if there:
            sums[there, column] = _sparse_sums(sparse_from_rows(pairs))
    return sums
