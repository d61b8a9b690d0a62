"""Vectors in memory are found by the keys of their texts, like those on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ultimate_embedder.chunks import TextList
from ultimate_embedder.types import PassIdentity
from ultimate_embedder.vectors import MemoryStore, PassVectors, VectorStore

IDENTITY = PassIdentity("model", "1", "digest", "float32", None, None, None)
TEXTS = TextList([f"text {number}" for number in range(20)])
VECTORS = np.random.default_rng(7).normal(size=(20, 8)).astype(np.float32)


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> PassVectors:
    return MemoryStore(IDENTITY) if request.param == "memory" else VectorStore(tmp_path, IDENTITY)


def test_vectors_are_read_in_the_order_that_is_asked_for(store: PassVectors) -> None:
    for rows in ([3, 1], [0, 2, 4], [], [10]):
        store.append(TEXTS.keys[rows], VECTORS[rows], np.array([row > 2 for row in rows], bool))
    store.seal()
    wanted = [10, 0, 3, 3, 1]
    assert np.array_equal(store.read(TEXTS.keys[wanted]), VECTORS[wanted])
    assert store.dim == 8
    assert store.holds(TEXTS.keys).nonzero()[0].tolist() == [0, 1, 2, 3, 4, 10]
    assert store.overlong(TEXTS.keys).nonzero()[0].tolist() == [3, 4, 10]
    assert store.read(TEXTS.keys[:0]).shape == (0, 8)


def test_the_digest_is_that_of_the_vectors() -> None:
    stores = [MemoryStore(IDENTITY) for _ in range(3)]
    for store, rows in zip(stores, ([0, 1], [0, 1], [1, 2]), strict=True):
        store.append(TEXTS.keys[rows], VECTORS[rows], np.zeros(2, bool))
    first, same, other = (store.digest() for store in stores)
    assert first == same != other
