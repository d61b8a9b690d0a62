"""One real run of embed, uploaded in the shape that a store reads, and the same model for the store's own queries."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.qdrant_server import QdrantServer
from ultimate_embedder.cli import main

TEXTS = {
    "clock": "A pendulum clock keeps time by the swing of a weight.",
    "watch": "The watch on her wrist is wound once a day.",
    "sundial": "A sundial shows the hour by the shadow that the sun casts.",
    "bread": "Bread dough rises because yeast makes bubbles of gas.",
    "soup": "Simmer the onions slowly before the stock goes into the soup.",
    "cake": "Beat butter and sugar until the cake batter is pale.",
    "train": "The night train crosses the mountains before dawn.",
    "ferry": "A ferry carries cars and people over the strait.",
}
TOPICS = {"clock": "time", "watch": "time", "sundial": "time", "bread": "food", "soup": "food", "cake": "food"}
QUESTION = "How can one tell what time it is?"
ADDED = "An hourglass measures an hour with sand."
MODEL = "all-minilm-l6-v2"
TARGET = f"notes__{MODEL}"
DIM = 384

Upload = Callable[..., str]


def records() -> list[dict[str, Any]]:
    """Chunks as a user may have them."""
    return [
        {"id": name, "text": text, "metadata": {"topic": TOPICS.get(name, "travel"), "page": page, "tags": ["a", "b"]}}
        for page, (name, text) in enumerate(TEXTS.items())
    ]


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write records as a collection called notes, and embed them, once for each text of them."""

    @functools.cache
    def run(rows: str) -> Path:
        root = tmp_path_factory.mktemp("notes")
        (root / "chunks" / "notes").mkdir(parents=True)
        (root / "chunks" / "notes" / "a_chunks.json").write_text(rows, encoding="utf-8")
        options = ["--models", MODEL, "--devices", "cpu", "--export", "parquet", "--quiet"]
        assert main(["embed", str(root / "chunks"), "--output", str(root / "out"), *options]) == 0
        return root / "out"

    return run


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with QdrantServer() as running:
        yield running


@pytest.fixture
def upload(embedded: Callable[[str], Path], server: QdrantServer, tmp_path: Path) -> Upload:
    """Upload with `--payload KIND`; gives the address of the server."""

    def call(kind: str, rows: list[dict[str, Any]] | None = None) -> str:
        mine = shutil.copytree(embedded(json.dumps(rows or records())), tmp_path / "out")
        assert main(["upload", str(mine), "--url", server.url, "--payload", kind, "--quiet"]) == 0
        return server.url

    return call


@pytest.fixture(scope="session")
def encode(minilm: Path) -> Callable[[list[str]], list[list[float]]]:
    """Vectors of texts, by sentence-transformers itself."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm), device="cpu")
    return lambda texts: model.encode(texts, normalize_embeddings=True).tolist()


def ranked(encode: Callable[[list[str]], list[list[float]]], names: list[str]) -> list[tuple[str, float]]:
    """These texts with their cosine to the question, the nearest first."""
    question, *vectors = np.array(encode([QUESTION, *(TEXTS[name] for name in names)]))
    cosines = np.array(vectors) @ question
    return [(TEXTS[names[row]], float(cosines[row])) for row in np.argsort(-cosines)]
