"""The exported vectors of a collection: the stores of its models, fused, and its sparse vectors beside them."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from ultimate_embedder.description import fingerprint
from ultimate_embedder.sparse import SparseVectors
from ultimate_embedder.types import PassIdentity, SparseFacts, VectorSpec
from ultimate_embedder.vectors.fusion import Fusion
from ultimate_embedder.vectors.memory import PassVectors
from ultimate_embedder.vectors.sparse_part import SparsePart


class FusedVectors:
    """The exported vectors of a collection: those of one store per dense model, fused, and sparse ones as they are."""

    def __init__(self, stores: Sequence[PassVectors], fusion: Fusion, sparse: Sequence[SparsePart] = ()) -> None:
        self.fusion = fusion
        self.stores = stores
        """Of the dense vectors."""
        self._sparse = sparse
        self._every = [*stores, *(part.store for part in sparse)]

    @functools.cached_property
    def identity(self) -> str:
        """Equal identities mean equal vectors of equal texts, in equal collections."""
        described = json.dumps(asdict(self.fusion) if len(self.stores) > 1 else None, sort_keys=True)
        contents = [f"{fingerprint(store.identity)}:{store.digest()}" for store in self._every]
        return hashlib.sha256("\n".join([described, *contents]).encode()).hexdigest()[:32]

    @property
    def vectors(self) -> tuple[VectorSpec, ...]:
        """The exported vectors: the dense ones, then the sparse ones."""
        return (*self.fusion.vectors, *(VectorSpec(each.name, None, "sparse") for each in self.sparse))

    @property
    def sparse(self) -> tuple[SparseFacts, ...]:
        """What is known of each sparse vector."""
        return tuple(part.facts for part in self._sparse)

    @property
    def is_fused(self) -> bool:
        """Whether there are several dense models."""
        return len(self.stores) > 1

    @property
    def identities(self) -> list[PassIdentity]:
        """The identities of the passes that the vectors are made of."""
        return [store.identity for store in self._every]

    @property
    def fingerprints(self) -> list[str]:
        """The passes that the vectors are made of."""
        return [fingerprint(store.identity) for store in self._every]

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """For each key, whether every model has a vector for it."""
        return holds_all(self._every, keys)

    def without(self, keys: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """The models that have no vector for some keys, each with a mask of these keys."""
        missing = [(store.identity.model, ~store.holds(keys)) for store in self._every]
        return [(model, mask) for model, mask in missing if mask.any()]

    def read(self, keys: np.ndarray) -> dict[str, np.ndarray]:
        """The dense vectors of `keys`, all of which must be stored."""
        return self.fusion.fuse([store.read(keys) for store in self.stores])

    def read_sparse(self, keys: np.ndarray) -> dict[str, SparseVectors]:
        """The sparse vectors of `keys`, all of which must be stored."""
        return {part.facts.name: part.read(keys) for part in self._sparse}


def holds_all(stores: Sequence[PassVectors], keys: np.ndarray) -> np.ndarray:
    """For each key, whether all of these stores have a vector for it."""
    return np.asarray(np.logical_and.reduce([store.holds(keys) for store in stores]))
