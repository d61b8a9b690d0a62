"""Outputs of the same chunks by small models, made once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed

HOSTILE = '<script src="http://x/"></script>\u202e\x1b[31m'
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu"]


def text(number: int) -> str:
    chosen = [WORDS[(number * step + step) % len(WORDS)] for step in range(1, 4 + number % 9)]
    return f"{HOSTILE if number == 7 else number} {' '.join(chosen)}"


@pytest.fixture(scope="session")
def make_output(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Embed some of the texts; `rows` are their numbers."""
    root = tmp_path_factory.mktemp("compare")

    def make(name: str, rows: range = range(60), collection: str = "docs", **options: Any) -> Path:
        folder = root / f"chunks-{rows.start}-{rows.stop}" / collection
        folder.mkdir(parents=True, exist_ok=True)
        records = [{"text": text(number), "metadata": {"chunk_id": f"chunk-{number}"}} for number in rows]
        (folder / "a_chunks.json").write_text(json.dumps(records), "utf-8")
        embed(folder.parent, root / name, quiet=True, exports=["parquet"], **options)
        return root / name

    return make


@pytest.fixture(scope="session")
def bert(make_output: Callable[..., Path]) -> Path:
    return make_output("bert", models=[str(tiny_model("bert"))])


@pytest.fixture(scope="session")
def short_bert(make_output: Callable[..., Path]) -> Path:
    """The same model, with texts truncated; and with other texts at both ends."""
    return make_output("short", range(5, 65), models=[str(tiny_model("bert"))], max_tokens=16)


@pytest.fixture(scope="session")
def qwen(make_output: Callable[..., Path]) -> Path:
    return make_output("qwen", models=[str(tiny_model("qwen2", hidden=32))])


@pytest.fixture(scope="session")
def ensembles(make_output: Callable[..., Path], bert: Path) -> tuple[Path, Path]:
    """Both models, named, and concatenated."""
    models = {str(tiny_model("bert")): 0.6, str(tiny_model("qwen2", hidden=32)): 0.4}
    named = make_output("named", models=models, resume_from=bert)
    return named, make_output("concat", models=models, fusion="concat", resume_from=named)


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    """A copy of an output that a test may damage."""
    return lambda output: Path(shutil.copytree(output, tmp_path / output.name))
