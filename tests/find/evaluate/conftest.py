"""A small output with two tiny models and BM25, and queries with judgements for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed

TOPICS = ("wing lift", "heat flow", "shock wave", "boundary layer", "jet noise")
RECORDS: list[dict[str, Any]] = [
    {
        "id": f"{topic.replace(' ', '-')}-{number}",
        "text": f"{topic} measured in experiment {number} with {'many ' * number}results",
        "metadata": {"document": topic.split()[0], "section_path": ["Report", f"On {topic} part {number}"]},
    }
    for topic in TOPICS
    for number in range(6)
]
QUERIES = {topic.split()[0]: f"what is known about {topic}" for topic in TOPICS}
QRELS: dict[str, dict[str, int]] = {
    query: {record["id"]: 1 + (number % 3) for number, record in enumerate(RECORDS) if record["id"].startswith(query)}
    for query in QUERIES
}
MODELS = {"bert": "tiny-bert", "mpnet": "tiny-mpnet"}


def make_output(output: Path, **options: object) -> Path:
    models = ",".join(str(tiny_model(each, hidden=32, layers=1)) for each in ("bert", "mpnet"))
    given: dict[str, object] = {"models": models, "sparse": "bm25", "exports": "parquet", **options}
    summary = embed(RECORDS, output, name="docs", quiet=True, **given)  # type: ignore[arg-type]
    assert summary.ok, summary
    return output


@pytest.fixture(scope="session")
def tiny_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of thirty chunks; not to be changed."""
    return make_output(tmp_path_factory.mktemp("evaluate") / "out")
