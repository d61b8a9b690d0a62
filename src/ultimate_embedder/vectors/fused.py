"""The exported vectors of a collection: the stores of its models, fused."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from ultimate_embedder.description import fingerprint
from ultimate_embedder.types import PassIdentity, VectorSpec
from ultimate_embedder.vectors.fusion import Fusion
from ultimate_embedder.vectors.memory import PassVectors


class FusedVectors:
    """The exported vectors of a collection, read from one store per model and fused."""

    def __init__(self, stores: Sequence[PassVectors], fusion: Fusion) -> None:
        self.fusion = fusion
        self._stores = stores

    @functools.cached_property
    def identity(self) -> str:
        """Equal identities mean equal vectors."""
        return _identity(self._stores, self.fusion)

    @property
    def vectors(self) -> tuple[VectorSpec, ...]:
        """The exported vectors."""
        return self.fusion.vectors

    @property
    def identities(self) -> list[PassIdentity]:
        """The identities of the passes that the vectors are made of."""
        return [store.identity for store in self._stores]

    @property
    def fingerprints(self) -> list[str]:
        """The passes that the vectors are made of."""
        return [fingerprint(store.identity) for store in self._stores]

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """For each key, whether every model has a vector for it."""
        return np.asarray(np.logical_and.reduce([store.holds(keys) for store in self._stores]))

    def without(self, keys: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """The models that have no vector for some keys, each with a mask of these keys."""
        missing = [(store.identity.model, ~store.holds(keys)) for store in self._stores]
        return [(model, mask) for model, mask in missing if mask.any()]

    def read(self, keys: np.ndarray) -> dict[str, np.ndarray]:
        """The vectors of `keys`, all of which must be stored."""
        return self.fusion.fuse([store.read(keys) for store in self._stores])


def _identity(stores: Sequence[PassVectors], fusion: Fusion) -> str:
    described = json.dumps(asdict(fusion) if len(stores) > 1 else None, sort_keys=True)
    contents = [f"{fingerprint(store.identity)}:{store.digest()}" for store in stores]
    return hashlib.sha256("\n".join([described, *contents]).encode()).hexdigest()[:32]
