"""Outputs to be searched: named vectors of two models, one vector, and several collections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import tiny_model, tiny_splade
from ultimate_embedder import embed
from ultimate_embedder.files import write_json

MODELS = [str(tiny_model(architecture)) for architecture in ("bert", "mpnet")]
WORDS = ("wing", "shock", "plate", "heat", "drag", "jet", "nose", "flow")
QUICK: dict[str, Any] = {"devices": "cpu", "quiet": True, "no_report": True}


def records(count: int, prefix: str = "c") -> list[dict[str, Any]]:
    """Chunks with texts that differ, and metadata of each type."""
    return [
        {
            "id": f"{prefix}{number}",
            "text": " ".join(WORDS[(number * step) % len(WORDS)] for step in range(1, 3 + number % 5)) + f" {number}",
            "metadata": {
                "page": number % 4,
                "share": number / 4,
                "draft": number % 2 == 0,
                "source_file": f"file-{number % 3}.md",
                "section_path": ["Part", f"Section {number % 2}"],
                "tags": ["odd"] if number % 2 else ["even", "two"],
                "version": "2" if number < 5 else 2,
            },
        }
        for number in range(count)
    ]


def worded_records(count: int) -> list[dict[str, Any]]:
    """Chunks that no two words score alike, as engines have no order for equal scores."""
    texts = [
        "shock " * (1 + n % 5) + "jet " * (n % 3) + "plate " * (n % 7) + "nose " * (n % 2) + "wing " * n
        for n in range(count)
    ]
    return [
        {**record, "text": f"{text}{n}"} for n, (record, text) in enumerate(zip(records(count), texts, strict=True))
    ]


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`named`, `single`, `concat` (without a shard), `several` and `sparse`, each with 30 points."""
    root = tmp_path_factory.mktemp("outputs")
    write_json(root / "chunks" / "docs" / "a_chunks.json", records(30))
    write_json(root / "two" / "first" / "a_chunks.json", records(18))
    write_json(root / "two" / "second" / "a_chunks.json", records(30)[18:])
    embed(root / "chunks", root / "named", models=MODELS, exports=["npy", "parquet", "qdrant"], **QUICK)
    embed(root / "chunks", root / "single", models=MODELS[0], **QUICK)
    embed(root / "chunks", root / "concat", models=MODELS, fusion="concat", exports=["npy", "parquet"], **QUICK)
    embed(root / "two", root / "several", models=MODELS, **QUICK)
    write_json(root / "words" / "docs" / "a_chunks.json", worded_records(30))
    embed(root / "words", root / "sparse", models=MODELS[0], sparse=["bm25", f"splade={tiny_splade()}"], **QUICK)
    return root
