"""Search the vectors in the exported files: every vector is compared. For outputs without a Qdrant shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ultimate_embedder.errors import UsageError
from ultimate_embedder.export import PointsFile, read_vectors
from ultimate_embedder.find.filters import Condition, Payload, find_values
from ultimate_embedder.find.places.base import Found, Place, QueryLeg
from ultimate_embedder.find.score_fusion import top_columns
from ultimate_embedder.find.sparse import inverse_frequencies
from ultimate_embedder.output import CollectionOutput
from ultimate_embedder.sparse import SparseVectors

BLOCK_ROWS = 16_384
READ_ROWS = 1024
AGAIN = (
    "Run the same embed command again, with --export parquet,qdrant: vectors that are stored are not computed again."
)


class ExactPlace(Place):
    """The points of `chunks.parquet`, with the vectors of the npy export where there is one."""

    def __init__(self, file: PointsFile, vectors: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.label = f"{file.path} (every vector is compared, without a Qdrant shard)"
        self.points = file.points
        self._file = file
        self._vectors = vectors
        self._ids = [each for ids in file.ids(READ_ROWS) for each in ids]
        self._rows: dict[str, int] | None = None
        self._masks: dict[tuple[Condition, ...], np.ndarray] = {}
        self._sparse: dict[str, SparseVectors] = {}  # read when they are first needed

    def nearest(self, leg: QueryLeg, limit: int, conditions: Sequence[Condition]) -> list[Found]:
        """The points with the highest scores, best first."""
        placed = self.placed(conditions)
        if placed is None or not self.points:
            return []
        scores = self._all_scores(leg)
        if leg.kind == "sparse":  # what shares no word with the question is not found
            scores = np.where(scores > 0, scores, -np.inf)
        if placed:
            scores = np.where(self._mask(tuple(placed)), scores, -np.inf)
        best = top_columns(scores[None, :], limit)[0]
        return [Found(self._ids[row], float(scores[row])) for row in best if np.isfinite(scores[row])]

    def scores(self, leg: QueryLeg, keys: Sequence[str]) -> dict[str, float]:
        """The scores of these points."""
        rows = self._rows_of(keys)
        if isinstance(leg.vector, SparseVectors):
            found = self._all_scores(leg)[rows]
        else:
            found = _cosines(self._vectors[leg.name][rows], leg.vector)
        return {key: float(score) for key, score in zip(keys, found, strict=True)}

    def payloads(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        """The payloads of points, in the order of `keys`."""
        return self._file.read_payloads(self._rows_of(keys))

    def has_key(self, condition: Condition) -> bool:
        """Whether a payload has something under the path of a condition."""
        return any(
            value is not None
            for payloads in self._file.payload_batches(READ_ROWS)
            for payload in payloads
            for value in find_values(payload, condition.path)
        )

    def sample(self, count: int) -> Iterator[Payload]:
        """Some payloads, to see which keys they have."""
        batches = self._file.payload_batches(READ_ROWS)
        return islice((payload for payloads in batches for payload in payloads), count)

    def _all_scores(self, leg: QueryLeg) -> np.ndarray:
        if isinstance(leg.vector, SparseVectors):
            return self._sparse_scores(leg.name, leg.vector)
        vectors = self._vectors[leg.name]
        blocks = range(0, len(vectors), BLOCK_ROWS)
        parts = [_cosines(vectors[start : start + BLOCK_ROWS], leg.vector) for start in blocks]
        return np.concatenate(parts) if parts else np.empty(0)

    def _sparse_scores(self, name: str, query: SparseVectors) -> np.ndarray:
        if name not in self._sparse:
            self._sparse[name] = self._file.read_sparse(name, READ_ROWS)
        (facts,) = (each for each in self._file.sparse if each.name == name)
        return sparse_scores(self._sparse[name], query, idf=facts.modifier == "idf")

    def _mask(self, conditions: tuple[Condition, ...]) -> np.ndarray:
        if conditions not in self._masks:
            batches = self._file.payload_batches(READ_ROWS)
            fulfilled = (all(each.matches(payload) for each in conditions) for batch in batches for payload in batch)
            self._masks[conditions] = np.fromiter(fulfilled, bool)
        return self._masks[conditions]

    def _rows_of(self, keys: Sequence[str]) -> list[int]:
        if self._rows is None:
            self._rows = {each: row for row, each in enumerate(self._ids)}
        return [self._rows[key] for key in keys]


def open_exact(collection: CollectionOutput) -> ExactPlace:
    """Open the vectors and chunks of a collection; raises `UsageError` if they were not exported."""
    if not collection.points_file.exists():
        raise UsageError(
            f"{collection.folder} has neither a Qdrant shard nor {collection.points_file.name}, which have the texts "
            f"to be found. {AGAIN}"
        )
    file = PointsFile.open(collection.points_file)
    return ExactPlace(file, _read_dense(collection, file))


def _read_dense(collection: CollectionOutput, file: PointsFile) -> dict[str, np.ndarray]:
    dense = [spec for spec in file.vectors if not spec.is_sparse]
    return {spec.name: read_vectors(collection, spec, file.points) for spec in dense}


def sparse_scores(vectors: SparseVectors, query: SparseVectors, *, idf: bool) -> np.ndarray:
    """The dot product of each row with a query, as Qdrant computes it: with IDF a rare word counts more."""
    words, values = query[0]
    if not len(words):
        return np.zeros(len(vectors))
    places, is_word = vectors.places(words)
    known = np.flatnonzero(is_word)
    weights = values.astype(np.float64)
    if idf:
        weights = weights * inverse_frequencies(np.bincount(places[known], minlength=len(words)), len(vectors))
    rows = np.repeat(np.arange(len(vectors)), vectors.lengths)[known]
    return np.bincount(rows, vectors.values[known] * weights[places[known]], minlength=len(vectors))


def _cosines(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors)) * np.linalg.norm(query)
        scores = (vectors @ query) / lengths
    return np.asarray(np.where(np.isfinite(scores), scores, 0.0), np.float64)
