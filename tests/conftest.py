"""What many tests need: chunk files, real and tiny models, the sample data where it is there."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import json
import os
import shutil
import signal
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest

from ultimate_embedder.config import CHECK_LOCKS_VARIABLE, HISTORY_VARIABLE
from ultimate_embedder.events import Event
from ultimate_embedder.files import copy_file
from ultimate_embedder.locks import check_lock_order
from ultimate_embedder.models import resolve_model

SHARED = Path(__file__).resolve().parents[2] / "shared"
WriteChunks = Callable[..., Path]
LONGEST = "test_file_operations.py"
HOLES_BYTES = 8 << 20  # smaller files are copied sooner as they are

check_lock_order(True)
os.environ[CHECK_LOCKS_VARIABLE] = "1"  # for the processes that tests start
# here and not in a fixture, as those of a module come first: no test adds to the user's history of runs
os.environ[HISTORY_VARIABLE] = "off"


def pytest_configure() -> None:
    """Hear Ctrl-C, also where the shell has started the tests in the background, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Collect no garbage among modules that are imported."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: as the last it would run alone."""
    items.sort(key=lambda item: item.path.name != LONGEST)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Nor look through what they have made later: half a million objects, each time."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def quick_runs() -> Iterator[None]:
    """No file of a test must survive a power failure, and neither versions nor authorities change while the tests run.

    A sync takes 10 ms and a run has many; looking up versions is an eighth of a small run; reading the certificates of
    all authorities takes a client 40 ms. Processes that tests start do all this, as in `tests/file_operations.py`,
    which fails syncs too. Tests copy outputs, whose shards have 67 MB, almost all of it holes: these stay holes.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", os.fstat)  # the file must be open all the same
        patched.setattr(importlib.metadata, "version", functools.cache(importlib.metadata.version))
        patched.setattr(ssl, "create_default_context", _read_authorities_once())
        patched.setattr(shutil, "copyfile", _copy_with_holes(shutil.copyfile))
        yield


def _read_authorities_once() -> Callable[..., ssl.SSLContext]:
    """As `ssl.create_default_context`; clients that trust the public authorities share one context."""
    read = ssl.create_default_context
    public = {certifi.where(), os.environ.get("SSL_CERT_FILE", certifi.where())}
    kept = functools.cache(lambda cafile: read(cafile=cafile))

    def create(*arguments: Any, **options: Any) -> ssl.SSLContext:
        if not arguments and options.keys() == {"cafile"} and options["cafile"] in public:
            return kept(options["cafile"])
        return read(*arguments, **options)

    return create


def _copy_with_holes(copy_small: Callable[..., Any]) -> Callable[..., Any]:
    def copy(source: Any, target: Any, *, follow_symlinks: bool = True) -> Any:
        if not follow_symlinks or Path(source).stat().st_size < HOLES_BYTES:
            return copy_small(source, target, follow_symlinks=follow_symlinks)
        copy_file(Path(source), Path(target))
        return target

    return copy


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may depend on a hub that happens to answer."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


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
