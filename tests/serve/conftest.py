"""An output with two models and three collections, and a client of its server."""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

from starlette.testclient import TestClient

from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.serve.app import Site, make_app
from ultimate_embedder.serve.options import make_serve_config
from ultimate_embedder.serve.run import open_server

HOSTILE = "<script>alert('x')</script> \x1b[31m\u202e & <img src=x onerror=alert(1)>"
TEXTS = [*(f"the quick brown fox number {number} jumps over the lazy dog" for number in range(8)), HOSTILE]
OpenClient = Callable[..., TestClient]


@pytest.fixture(scope="session")
def served_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models with named vectors: one has prompts, the other has the name of one that can be shortened."""
    folder = tmp_path_factory.mktemp("served")
    for name in ("docs", "more"):
        (folder / "chunks" / name).mkdir(parents=True)
        sources = ["fox.md"] * 8 + [HOSTILE]
        records = [
            {"text": text, "metadata": {"number": number, "source": source, "section": f"{name} {source}"}}
            for number, (text, source) in enumerate(zip(TEXTS, sources, strict=True))
        ]
        (folder / "chunks" / name / "a.json").write_text(json.dumps(records))
    shortened = shutil.copytree(tiny_model("qwen3"), folder / "qwen3-embedding-0.6b")
    models = f"{tiny_model('bert', prompts=True)},{shortened}"
    summary = embed(folder / "chunks", folder / "out", models=models, fusion="named", quiet=True, no_report=True)
    assert summary.ok
    return folder / "out"


@pytest.fixture
def open_client() -> Iterator[OpenClient]:
    """A client of the server of an output; options are those of `serve`."""
    sites = []

    def open(output: Path, **options: Any) -> TestClient:
        config = make_serve_config(output, offline=True, **options)
        sites.append(Site.open(config, port=8765))
        return TestClient(make_app(sites[-1]), "http://127.0.0.1:8765", raise_server_exceptions=False)

    yield open
    for site in sites:
        site.close()


@pytest.fixture
def client(open_client: OpenClient, served_output: Path) -> TestClient:
    return open_client(served_output)


@contextlib.contextmanager
def running_server(output: Path, **options: Any) -> Iterator[str]:
    """A server on a thread of this process; gives its address."""
    addresses: queue.Queue[str] = queue.Queue()
    server = open_server(make_serve_config(output, port=0, offline=True, **options), addresses.put)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield addresses.get(timeout=60)
    finally:
        server.should_exit = True
        thread.join(60)
