"""Points: chunks joined with their vectors, in load order, read in blocks. Every export is made from these."""

from __future__ import annotations

import copy
import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultimate_embedder.export.origin import VectorOrigin, origin_of
from ultimate_embedder.files import safe_name
from ultimate_embedder.payload import parse_record, payload
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import UNNAMED, SparseFacts

if TYPE_CHECKING:  # --help imports this module: no numpy, no pyarrow
    import numpy as np

    from ultimate_embedder.chunks import ChunkTable, TableRows
    from ultimate_embedder.export.format import NamedVectors
    from ultimate_embedder.sparse import SparseVectors
    from ultimate_embedder.vectors import FusedVectors

LONGEST_NAME = 255
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "ultimate-embedder")
_VARIANT = {f"{digit:x}": f"{digit & 3 | 8:x}" for digit in range(16)}  # the first two bits are 10


def point_id(collection: str, chunk_id: str) -> str:
    """The Qdrant point id of a chunk: the same on every upload, so that a second upload overwrites the first."""
    return str(uuid.uuid5(_NAMESPACE, f"{collection}\0{chunk_id}"))


def point_ids(collection: str, chunk_ids: Sequence[str]) -> list[str]:
    """The same for many chunks, at a third of the cost: a UUID of version 5 without the object."""
    before = hashlib.sha1(_NAMESPACE.bytes + f"{collection}\0".encode(), usedforsecurity=False)
    found = []
    for chunk_id in chunk_ids:
        hashed = before.copy()
        hashed.update(chunk_id.encode())
        digits = hashed.hexdigest()
        variant = _VARIANT[digits[16]]
        found.append(f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}")
    return found


def target_collection_name(collection: str, model: str, dim: int | None = None) -> str:
    """The default name of the Qdrant collection, from collection and model names."""
    parts = [collection, model] + ([f"{dim}d"] if dim else [])
    first, *rest = (safe_name(part) for part in parts)
    ending = "__".join(["", *rest])
    if len(ending) > LONGEST_NAME // 2:  # many models, or one with a very long name
        ending = f"__{hashlib.sha256(ending.encode()).hexdigest()[:12]}{ending[-LONGEST_NAME // 2 :]}"
    return first[: LONGEST_NAME - len(ending)] + ending  # truncate the collection's name, not the model's


@dataclass(frozen=True)
class PointBlock:
    """Some consecutive points; `records` are JSON."""

    collection: str
    ids: list[str]
    point_ids: list[str]
    texts: list[str]
    records: list[str]
    files: list[str]
    positions: list[int]
    vectors: dict[str, np.ndarray]
    """By name; '' if points have one unnamed vector."""
    sparse: dict[str, SparseVectors]
    """By name."""

    def __len__(self) -> int:
        return len(self.ids)

    def vector(self, row: int) -> Any:
        """The vector of one point, or its vectors by name, as Qdrant expects it."""
        return row_vector({**self.vectors, **self.sparse}, row)

    def payload(self, row: int) -> dict[str, Any]:
        """The Qdrant payload of one point."""
        record = parse_record(self.records[row])
        return payload(self.ids[row], self.collection, self.files[row], self.texts[row], record)


def row_vector(vectors: NamedVectors, row: int) -> Any:
    """The vectors of one of several points as Qdrant has them: one array, or arrays and sparse vectors by name."""
    by_name: dict[str, Any] = {name: _one(each[row]) for name, each in vectors.items()}
    return by_name[UNNAMED] if list(by_name) == [UNNAMED] else by_name


def _one(vector: Any) -> Any:
    return dict(zip(("indices", "values"), vector, strict=True)) if isinstance(vector, tuple) else vector


class Points:
    """All points of a collection: the chunks that have a vector from every model."""

    def __init__(
        self,
        collection: str,
        target: str,
        table: ChunkTable,
        vectors: FusedVectors,
        stop: StopSwitch | None = None,
    ) -> None:
        self.collection = collection
        self.target = target
        self.identity = f"{table.digest} {vectors.identity} {target}"
        """Hash of all points: exports with equal identities are equal."""
        self.vectors = vectors.vectors
        self.sparse: tuple[SparseFacts, ...] = vectors.sparse
        self.fusion = vectors.fusion
        self.stop = stop or StopSwitch()
        self._table = table
        self._fused = vectors
        self._kept = vectors.holds(table.keys)
        self._tell: Callable[[int], None] | None = None
        self._source: Callable[[], Iterator[PointBlock]] = self._read_blocks

    def telling(self, tell: Callable[[int], None]) -> Points:
        """The same points; `tell` hears after each block how many were taken, whenever they are read."""
        points = copy.copy(self)
        points._tell = tell
        return points

    def fed_by(self, source: Callable[[], Iterator[PointBlock]], stop: StopSwitch) -> Points:
        """The same points, whose blocks are read by somebody else: once, in order; and another reason to stop."""
        points = copy.copy(self)
        points._source, points.stop = source, stop
        return points

    def __len__(self) -> int:
        return int(self._kept.sum())

    @property
    def distinct_texts(self) -> int:
        """Different texts among the chunks."""
        return self._table.distinct_texts()

    @property
    def origin(self) -> VectorOrigin:
        """Models and fusion that the vectors are made by."""
        return origin_of(self._fused)

    @property
    def fingerprints(self) -> list[str]:
        """The passes that the vectors are made of."""
        return self._fused.fingerprints

    @property
    def kept(self) -> np.ndarray:
        """Which chunks of the table are points, as a mask: those that have every vector."""
        return self._kept

    def removed_point_ids(self) -> list[str]:
        """The ids that the chunks without a vector would have."""
        return [
            point_id
            for rows in self._table.blocks(~self._kept)
            for point_id, kept in zip(point_ids(self.collection, rows.ids), self._kept[rows.start :], strict=False)
            if not kept
        ]

    def blocks(self) -> Iterator[PointBlock]:
        """Yield the points block by block; raises `StoppedError` if the run must stop."""
        taken = 0
        for block in self._source():
            self.stop.check()
            yield block
            taken += len(block)
            if self._tell is not None:
                self._tell(taken)

    def batches(self) -> Iterator[tuple[list[str], NamedVectors, list[dict[str, Any]]]]:
        """Yield point ids, vectors by name and payloads, as `PointsFile` does."""
        for block in self.blocks():
            payloads = [block.payload(row) for row in range(len(block))]
            yield block.point_ids, {**block.vectors, **block.sparse}, payloads

    def without_vector(self) -> Iterator[tuple[str, int, str, bytes]]:
        """File and position of each chunk without a vector, the models that have none for it, and its text's key."""
        missing = self._fused.without(self._table.keys)
        for rows in self._table.blocks(~self._kept):
            for row, (file, position) in enumerate(zip(rows.files, rows.positions, strict=True), rows.start):
                if not self._kept[row]:
                    models = ", ".join(model for model, mask in missing if mask[row])
                    yield file, position, models, bytes(self._table.keys[row])

    def _read_blocks(self) -> Iterator[PointBlock]:
        return (self._join(rows) for rows in self._table.blocks(self._kept))

    def _join(self, rows: TableRows) -> PointBlock:
        chosen = self._kept[rows.start : rows.start + len(rows.ids)].nonzero()[0]
        ids, keys = [rows.ids[row] for row in chosen], self._table.keys[rows.start + chosen]
        return PointBlock(
            collection=self.collection,
            ids=ids,
            point_ids=point_ids(self.collection, ids),
            texts=[rows.texts[row] for row in chosen],
            records=[rows.records[row] for row in chosen],
            files=[rows.files[row] for row in chosen],
            positions=[rows.positions[row] for row in chosen],
            vectors=self._fused.read(keys),
            sparse=self._fused.read_sparse(keys),
        )
