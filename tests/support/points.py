"""Points of a collection with random vectors, for tests of exports that need no model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder.chunks import find_collections, load_chunks
from ultimate_embedder.export import Points
from ultimate_embedder.models import WordCounter
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import Bm25Settings, PassIdentity
from ultimate_embedder.vectors import Candidate, FusedVectors, SparsePart, VectorStore, measure_sparse, plan_fusion

DIM = 64


def make_points(
    root: Path,
    records: Sequence[dict[str, Any]],
    *,
    models: Sequence[str] = ("model",),
    dim: int = DIM,
    digest: str = "a digest",
    stop: StopSwitch | None = None,
    words: Bm25Settings | None = None,
) -> Points:
    """Points of a new collection called docs below `root`; with BM25 vectors, if `words` has settings."""
    folder = root / "chunks" / "docs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a_chunks.json").write_text(json.dumps(records), encoding="utf-8")
    (found,) = find_collections(root / "chunks").collections
    loaded = load_chunks(found, root / ".chunks.arrow.partial", lambda event: None)
    vectors = random_vectors(root, loaded.table.keys, models=models, dim=dim, digest=digest)
    if words is not None:
        texts = [text for block in loaded.table.blocks() for text in block.texts]
        part = counted_words(root, loaded.table.keys, texts, words)
        vectors = FusedVectors(vectors.stores, vectors.fusion, [part])
    return Points("docs", "docs__model", loaded.table, vectors, stop)


def random_vectors(
    root: Path, keys: np.ndarray, *, models: Sequence[str] = ("model",), dim: int = DIM, digest: str = "a digest"
) -> FusedVectors:
    """Vectors of these texts, of no real model."""
    stores = []
    for number, model in enumerate(models):
        store = VectorStore(root / "store", PassIdentity(model, "1", digest, "float32", None, None, None))
        vectors = np.random.default_rng(number).standard_normal((len(keys), dim)).astype("f4")
        new = ~store.holds(keys)
        store.append(keys[new], vectors[new], np.zeros(int(new.sum()), bool))
        store.seal()
        stores.append(store)
    return FusedVectors(stores, plan_fusion("named", [Candidate(model, 1 / len(models), dim, ()) for model in models]))


def counted_words(root: Path, keys: np.ndarray, texts: Sequence[str], settings: Bm25Settings) -> SparsePart:
    """The BM25 vectors of these texts."""
    identity = PassIdentity("bm25", "bm25", "a digest", "float32", None, None, None, kind="sparse", bm25=settings)
    store = VectorStore(root / "store", identity)
    new = ~store.holds(keys)
    counts = WordCounter(settings).count([text for text, is_new in zip(texts, new, strict=True) if is_new])
    store.append(keys[new], counts, np.zeros(int(new.sum()), bool))
    store.seal()
    return measure_sparse(store, keys)
