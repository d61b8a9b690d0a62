"""A shard of many points is begun while texts are encoded: the same shard as one that is written afterwards."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdrant_edge import EdgeShard, Query, QueryRequest, ScrollRequest

from tests.conftest import WriteChunks
from tests.support.points import make_points
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.child import Child
from ultimate_embedder.edge import Rows, VectorRows
from ultimate_embedder.errors import OutputError, StoppedError
from ultimate_embedder.events import Event, Warned
from ultimate_embedder.export import (
    Points,
    begin_exports,
    check_export,
    draft,
    read_export_journal,
    shard,
    write,
    write_exports,
)
from ultimate_embedder.files import scratch_copy
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import Bm25Settings

RECORDS: list[dict[str, Any]] = [
    {"text": f"text {number}", "id": f"chunk-{number}", "metadata": {"page": number % 10, "words": ["a", "ß", None]}}
    for number in range(2200)
]
KINDS = ("npy", "parquet", "qdrant")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "DRAFT_POINTS", 1000)


def nothing(event: Event) -> None:
    pass


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def sent(draft_: Any) -> bool:
    return not draft_._draft._thread.is_alive()


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


@contextmanager
def begun(points: Points, folder: Path, emit: Callable[[Event], None] = nothing) -> Iterator[Any]:
    with begin_exports("docs", points._table, folder, KINDS, emit, points.stop) as drafts:
        yield drafts


def drafted(points: Points, folder: Path, emit: Callable[[Event], None] = nothing) -> Path:
    """Export points, of which the shard was begun before."""
    with begun(points, folder, emit) as drafts:
        wait_until(lambda: sent(drafts["qdrant"]))
        write_exports(points, folder, KINDS, emit, drafts=drafts)
    return folder / "qdrant"


def content(path: Path) -> dict[str, Any]:
    """All points of a copy of the shard, by id."""
    with scratch_copy(path) as copy:
        loaded = EdgeShard.load(str(copy))
        records, _ = loaded.scroll(ScrollRequest(limit=10_000, with_payload=True, with_vector=True))
        loaded.close()
    return {str(each.id): (each.payload, each.vector) for each in records}


@pytest.mark.parametrize(
    ("models", "words"),
    [(("model",), None), (("first", "second"), None), (("model",), Bm25Settings())],
    ids=["one vector", "named vectors", "beside BM25"],
)
def test_a_drafted_shard_is_the_one_that_is_written_afterwards(
    tmp_path: Path, models: tuple[str, ...], words: Bm25Settings | None
) -> None:
    points = make_points(tmp_path, RECORDS, models=models, words=words)

    path = drafted(points, tmp_path / "drafted")
    write_exports(points, tmp_path / "after", KINDS, nothing)

    after = tmp_path / "after" / "qdrant"
    assert read_config(path) == read_config(after)
    found, expected = content(path), content(after)
    assert found.keys() == expected.keys()
    assert len(found) == len(RECORDS)
    for key, (payload, vector) in expected.items():
        assert found[key][0] == payload
        assert plain(found[key][1]) == plain(vector)
    journals = [read_export_journal(tmp_path / name)["qdrant"] for name in ("drafted", "after")]
    assert journals[0]["identity"] == journals[1]["identity"]
    assert names(path.parent) == names(after.parent)


def plain(vector: Any) -> Any:
    """What can be compared: sparse vectors cannot."""
    return {name: str(each) for name, each in vector.items()} if isinstance(vector, dict) else vector


def read_config(path: Path) -> Any:
    return json.loads((path / "edge_config.json").read_text())


def test_a_drafted_shard_is_searched_and_verified_as_any_other(tmp_path: Path) -> None:
    points = make_points(tmp_path, RECORDS)
    path = drafted(points, tmp_path / "docs")
    vector = next(points.blocks()).vectors[""][7]

    loaded = EdgeShard.load(str(path))
    (hit,) = loaded.query(QueryRequest(query=Query.Nearest(vector.tolist()), limit=1, with_payload=True))
    loaded.close()

    assert hit.payload is not None
    assert hit.payload["text"] == "text 7"
    assert hit.score == pytest.approx(1)
    found = check_export(path.parent, "qdrant", read_export_journal(path.parent)["qdrant"])
    assert (found.problem, found.remark) == (None, None)


def test_chunks_that_get_no_vector_are_not_in_it(tmp_path: Path) -> None:
    points = make_points(tmp_path, RECORDS)
    points._kept[[0, 5, 1500, 2199]] = False

    path = drafted(points, tmp_path / "docs")

    texts = {payload["text"] for payload, _ in content(path).values()}
    assert texts == {f"text {number}" for number in range(2200)} - {"text 0", "text 5", "text 1500", "text 2199"}
    changed = (path / "edge_config.json").read_bytes()  # so that points are compared, not bytes
    (path / "edge_config.json").write_bytes(changed + b" ")
    found = check_export(path.parent, "qdrant", read_export_journal(path.parent)["qdrant"])
    assert found.problem is None


def test_one_whose_process_has_died_is_written_anew_with_a_warning(tmp_path: Path) -> None:
    points = make_points(tmp_path, RECORDS)
    seen: list[Event] = []

    with begun(points, tmp_path / "docs", seen.append) as drafts:
        os.kill(drafts["qdrant"]._draft._part.child.pid, signal.SIGKILL)
        wait_until(lambda: sent(drafts["qdrant"]))
        write_exports(points, tmp_path / "docs", KINDS, seen.append, drafts=drafts)

    assert len(content(tmp_path / "docs" / "qdrant")) == len(RECORDS)
    (message,) = [event.message for event in seen if isinstance(event, Warned)]
    assert "written anew" in message
    assert "SIGKILL" in message
    assert not leftovers(tmp_path / "docs")


def leftovers(root: Path) -> list[Path]:
    return list(root.glob("**/*.partial"))


def test_one_that_is_not_far_is_given_up_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points, go_on = make_points(tmp_path, RECORDS), threading.Event()
    seen: list[Event] = []
    send = shard.Part.send

    def slow(self: Any, message: Any) -> None:
        if isinstance(message, Rows) and not message.vectors:
            go_on.wait(0.5)
        send(self, message)

    monkeypatch.setattr(shard.Part, "send", slow)
    with begun(points, tmp_path / "docs", seen.append) as drafts:
        write_exports(points, tmp_path / "docs", KINDS, seen.append, drafts=drafts)

    assert len(content(tmp_path / "docs" / "qdrant")) == len(RECORDS)
    assert not [event for event in seen if isinstance(event, Warned)]


def test_one_that_nobody_completes_leaves_nothing_behind(tmp_path: Path) -> None:
    points = make_points(tmp_path, RECORDS)
    (tmp_path / "docs").mkdir()

    with begun(points, tmp_path / "docs") as drafts:
        child: Child = drafts["qdrant"]._draft._part.child
        wait_until(lambda: drafts["qdrant"].written_bytes() > 0)

    assert names(tmp_path / "docs") == []
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_a_run_that_stops_while_vectors_are_written_stops(tmp_path: Path) -> None:
    stop = StopSwitch()
    points = make_points(tmp_path, RECORDS, stop=stop)

    with begun(points, tmp_path / "docs") as drafts:
        wait_until(lambda: sent(drafts["qdrant"]))
        stop.stop("enough")
        with pytest.raises(StoppedError):
            write_exports(points, tmp_path / "docs", ("qdrant",), nothing, drafts=drafts)

    assert not (tmp_path / "docs" / "qdrant").exists()


def test_a_process_that_dies_while_vectors_are_written_fails_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = make_points(tmp_path, RECORDS)
    send = shard.Part.send

    def dying(self: Any, message: Any) -> None:
        if isinstance(message, VectorRows):
            self.child.kill()
            time.sleep(0.2)
        send(self, message)

    monkeypatch.setattr(shard.Part, "send", dying)
    with begun(points, tmp_path / "docs") as drafts:
        wait_until(lambda: sent(drafts["qdrant"]))
        with pytest.raises(OutputError, match=r"its process was killed \(SIGKILL\)"):
            write_exports(points, tmp_path / "docs", ("qdrant",), nothing, drafts=drafts)

    assert not (tmp_path / "docs" / "qdrant").exists()
    write_exports(points, tmp_path / "docs", ("qdrant",), nothing)
    assert len(content(tmp_path / "docs" / "qdrant")) == len(RECORDS)


def test_no_shard_is_begun_for_few_points_or_other_exports(tmp_path: Path) -> None:
    points = make_points(tmp_path, RECORDS[:10])
    with begun(points, tmp_path / "docs") as drafts:
        assert drafts == {}
    many = make_points(tmp_path / "many", RECORDS)
    with begin_exports("docs", many._table, tmp_path, ("npy", "parquet"), nothing, many.stop) as drafts:
        assert drafts == {}


def test_a_run_drafts_its_shard_and_a_second_run_does_nothing(
    tmp_path: Path, write_chunks: WriteChunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed = []
    complete = draft.ShardDraft.complete

    def noted(self: Any, *arguments: Any) -> bytes | None:
        completed.append(complete(self, *arguments))
        return completed[-1]

    monkeypatch.setattr(draft.ShardDraft, "complete", noted)
    chunks, model = write_chunks(RECORDS[:1100]), str(tiny_model("bert"))

    summary = embed(chunks, tmp_path / "out", models=[model], devices="cpu", quiet=True)
    embed(chunks, tmp_path / "out", models=[model], devices="cpu", quiet=True)

    assert summary.collections[0].chunks.embedded == 1100
    assert len(completed) == 1
    assert len(content(tmp_path / "out" / "docs" / "qdrant")) == 1100
    vectors = np.load(tmp_path / "out" / "docs" / "embeddings.npy")
    assert vectors.shape[0] == 1100
    assert not leftovers(tmp_path / "out")
