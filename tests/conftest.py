"""What many tests need: chunk files, real and tiny models, the sample data where it is there."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ultimate_embedder.config import CHECK_LOCKS_VARIABLE, HISTORY_VARIABLE
from ultimate_embedder.events import Event
from ultimate_embedder.locks import check_lock_order
from ultimate_embedder.models import resolve_model
from ultimate_embedder.report.environment import find_versions

SHARED = Path(__file__).resolve().parents[2] / "shared"
WriteChunks = Callable[..., Path]

check_lock_order(True)
os.environ[CHECK_LOCKS_VARIABLE] = "1"  # for the processes that tests start


@pytest.fixture(scope="session", autouse=True)
def quick_runs() -> Iterator[None]:
    """No file of a test must survive a power failure, and no version changes while the tests run.

    A sync takes 10 ms and a run has many; looking up versions is an eighth of a small run. Processes that tests start
    do both, as in `tests/file_operations.py`, which fails syncs too.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", os.fstat)  # the file must be open all the same
        patched.setattr("ultimate_embedder.report.summary.find_versions", functools.cache(find_versions))
        yield


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may depend on a hub that happens to answer."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test adds to the user's history of runs, nor depends on it."""
    monkeypatch.setenv(HISTORY_VARIABLE, "off")


@pytest.fixture
def write_chunks(tmp_path: Path) -> WriteChunks:
    """Write records as `chunks/<collection>/<name>` and give the root of the collections."""

    def write(records: Any, collection: str = "docs", name: str = "a_chunks.json") -> Path:
        folder = tmp_path / "chunks" / collection
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(records), encoding="utf-8")
        return tmp_path / "chunks"

    return write


@pytest.fixture
def seen() -> list[Event]:
    """A list to use as an event sink: pass `seen.append`."""
    return []


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the real all-MiniLM-L6-v2."""
    return resolve_model("all-minilm-l6-v2").path


@pytest.fixture(scope="session")
def docling_sample() -> Path:
    """Four real chunk files, 40 chunks."""
    return _shared("data/docling-sample")


@pytest.fixture(scope="session")
def cranfield() -> Path:
    """1,400 abstracts as JSON Lines."""
    return _shared("data/cranfield/corpus.jsonl")


@pytest.fixture(scope="session")
def granite() -> Path:
    """A real model with CLS pooling, stored in fp16."""
    return _shared("models/granite-embedding-30m-english")


def _shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs the sample data ({name}), which is not part of the project")
    return path
