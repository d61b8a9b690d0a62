"""Whatever a server answers, and whatever is in a points file: an upload ends well, or with an error in words."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from qdrant_client import QdrantClient

from tests.support.points import make_points
from tests.support.qdrant_server import Answer, QdrantServer, Request
from tests.support.uploads import upload
from ultimate_embedder.errors import UploadError
from ultimate_embedder.export import PointsFile, write_exports
from ultimate_embedder.retry import RetryPolicy

ONCE = RetryPolicy(tries=2, first_wait_s=0.0, longest_wait_s=0.0, total_s=0.5)
REQUESTS = 24  # of an upload without trouble, at most
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
STATUSES = [200, 200, 200, 201, 301, 400, 401, 404, 409, 413, 429, 500, 503]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"dry_run": True},
    {"recreate": True},
    {"delete_removed": True},
    {"alias": "live", "payload_index": "page:integer"},
    {"quantization": "turbo"},
]
WAITS = st.none() | st.sampled_from(["-1", "0", "0.5", "soon", "1e400", "999999999999999", "\x7f"])


class LyingServer(QdrantServer):
    """Answers one request in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.number = -1
        self.status = 200
        self.body: bytes | None = None
        self.at: tuple[float, Any] | None = None
        self.wait: str | None = None

    def answer(self, request: Request) -> Answer | None:
        """As Qdrant would, but for one request."""
        honest = super().answer(request)
        if honest is None or len(self.requests) - 1 != self.number:
            return honest
        body = self.body if self.body is not None else honest[1]
        if self.at is not None and self.body is None:
            body = json.dumps(_replaced(json.loads(honest[1]), *self.at)).encode()
        return self.status, body, self.wait


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _paths(inner, (*path, key))


def _replaced(value: Any, where: float, new: Any) -> Any:
    """The same with another value at one of its places; with none at all if `new` is `...`."""
    paths = list(_paths(value))
    path = paths[min(int(where * len(paths)), len(paths) - 1)]
    if not path:
        return None if new is ... else new
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if new is ... and isinstance(inner, dict):
        del inner[path[-1]]
    else:
        inner[path[-1]] = None if new is ... else new
    return value


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fuzz")
    points = make_points(root, [{"text": f"text {number}", "metadata": {"page": number}} for number in range(8)], dim=4)
    write_exports(points, root / "docs", ("parquet",), lambda event: None)
    return root / "docs"


@pytest.fixture(scope="module")
def server() -> Iterator[LyingServer]:
    """One server, and one client for all uploads, as it takes long to make."""
    running = LyingServer()
    with running, pytest.MonkeyPatch.context() as patch:
        client = QdrantClient(url=running.url, timeout=5, check_compatibility=False)
        patch.setattr("ultimate_embedder.export.server.connection._http", lambda config, headers, trusted: client)
        patch.setattr(client, "close", lambda: None)
        yield running


@given(
    number=st.integers(0, REQUESTS),
    status=st.sampled_from(STATUSES),
    body=st.none() | st.none() | st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()),
    at=st.none() | st.tuples(st.floats(0, 1), st.just(...) | JSON),
    wait=WAITS,
    again=st.booleans(),
    options=st.sampled_from(OPTIONS),
)
def test_whatever_a_server_answers_an_upload_ends_in_words(
    docs: Path,
    server: LyingServer,
    number: int,
    status: int,
    body: Any,
    at: Any,
    wait: str | None,
    again: bool,
    options: dict[str, Any],
) -> None:
    server.collections.clear()
    server.service.aliases.clear()
    (docs / "upload.json").unlink(missing_ok=True)
    if again:
        server.number = -1
        upload(docs, server.url, lambda event: None, policy=ONCE)
    server.requests.clear()
    server.number, server.status, server.body, server.at, server.wait = number, status, body, at, wait
    with contextlib.suppress(UploadError):
        upload(docs, server.url, lambda event: None, policy=ONCE, **options)


@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=4), cut=st.floats(0, 1))
def test_a_points_file_with_other_bytes_is_refused_or_read_in_words(
    docs: Path, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[float, int]], cut: float
) -> None:
    content = bytearray((docs / "chunks.parquet").read_bytes())
    for where, flip in changes:
        content[min(int(where * len(content)), len(content) - 1)] ^= flip
    damaged = bytes(content) if cut < 0.7 else bytes(content[: int(cut * len(content))])
    assume(damaged != (docs / "chunks.parquet").read_bytes())
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "chunks.parquet").write_bytes(damaged)
    with contextlib.suppress(UploadError):
        for _ in PointsFile.open(folder / "chunks.parquet").batches(5):
            pass
    (folder / "store").mkdir()
    (folder / "store" / "exports.json").write_bytes((docs / "store" / "exports.json").read_bytes())
    with pytest.raises(UploadError):
        upload(folder, "http://127.0.0.1:1", lambda event: None, policy=ONCE)
