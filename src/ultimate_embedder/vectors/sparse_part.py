"""A sparse vector of the points of a collection: read from the store of its pass, beside the dense vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.description import fingerprint
from ultimate_embedder.sparse import SparseVectors
from ultimate_embedder.types import SparseFacts
from ultimate_embedder.vectors.bm25 import weigh_counts
from ultimate_embedder.vectors.memory import PassVectors

READ_ROWS = 8192
DEFAULT_AVG_LEN = 256.0  # Qdrant's, for a collection without any words


@dataclass(frozen=True)
class SparsePart:
    """A sparse vector and its store. It is never fused: dense and sparse scores are combined when a query is asked."""

    facts: SparseFacts
    store: PassVectors

    def read(self, keys: np.ndarray) -> SparseVectors:
        """The vectors of `keys`, all of which must be stored."""
        found: SparseVectors = self.store.read(keys)
        if self.facts.bm25 is None or self.facts.avg_len is None:
            return found
        return weigh_counts(found, self.facts.bm25, self.facts.avg_len)


def measure_sparse(store: PassVectors, keys: np.ndarray) -> SparsePart:
    """Read what a pass has stored for the points with these keys, to know their mean length; block by block."""
    identity = store.identity
    values, empty, words = 0, 0, 0.0
    for vectors in _blocks(store, keys):
        values += len(vectors.values)
        empty += int((vectors.lengths == 0).sum())
        words += float(vectors.values.sum(dtype=np.float64)) if identity.bm25 else 0.0
    facts = SparseFacts(
        name=identity.model,
        method="bm25" if identity.bm25 else "splade",
        fingerprint=fingerprint(identity),
        model=identity.model,
        digest=identity.model_digest,
        modifier="idf" if identity.bm25 else None,
        values_per_point=values / max(1, len(keys)),
        empty=empty,
        bm25=identity.bm25,
        avg_len=(words / len(keys) if words else DEFAULT_AVG_LEN) if identity.bm25 else None,
    )
    return SparsePart(facts, store)


def _blocks(store: PassVectors, keys: np.ndarray) -> Iterator[SparseVectors]:
    for start in range(0, len(keys), READ_ROWS):
        yield store.read(keys[start : start + READ_ROWS])
