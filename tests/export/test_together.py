"""Exports of many points are written side by side, and a shard by several processes: the same exports as one by one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from qdrant_edge import CountRequest, EdgeShard, Point, Query, ScrollRequest, SearchRequest, UpdateOperation

from tests.support.points import DIM, make_points
from ultimate_embedder.child import Child
from ultimate_embedder.errors import OutputError, StoppedError
from ultimate_embedder.events import Event, ExportStarted, ExportWritten
from ultimate_embedder.export import (
    Points,
    check_export,
    find_export,
    point_id,
    read_export_journal,
    shard,
    write,
    write_exports,
)
from ultimate_embedder.export.points import PointBlock, point_ids
from ultimate_embedder.export.shard_record import read_record
from ultimate_embedder.stop import StopSwitch

RECORDS: list[dict[str, Any]] = [
    {"text": f"text {number}", "metadata": {"chunk_id": f"chunk-{number}", "page": number % 10}}
    for number in range(2200)
]
KINDS = ("npy", "parquet", "qdrant")
PARTS = 2


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "SIDE_BY_SIDE_POINTS", 1)
    monkeypatch.setattr(shard, "PART_POINTS", 1000)
    monkeypatch.setattr(shard, "usable_cores", lambda: PARTS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Points:
    return make_points(tmp_path_factory.mktemp("made"), RECORDS)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def nothing(event: Event) -> None:
    pass


def during(points: Points, act: Callable[[], None], block: int = 1) -> Points:
    """The same points, with something that happens while they are read."""

    def source() -> Iterator[PointBlock]:
        for number, each in enumerate(points._read_blocks()):
            if number == block:
                act()
            yield each

    return points.fed_by(source, points.stop)


def has_ended(child: Child) -> bool:
    try:
        os.kill(child.pid, 0)
    except ProcessLookupError:
        return True
    return False


def assert_nothing_is_left(folder: Path, children: list[Child]) -> None:
    assert not folder.exists() or not names(folder)
    assert all(map(has_ended, children))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("export-")]


def test_they_are_the_exports_that_are_written_one_by_one_and_told_in_order(
    made: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Event] = []
    write_exports(made, tmp_path / "together", KINDS, seen.append)
    assert [event.kind for event in seen if isinstance(event, ExportStarted)] == list(KINDS)
    written = [event for event in seen if isinstance(event, ExportWritten)]
    assert [event.exported.kind for event in written] == list(KINDS)
    assert all(event.seconds >= 0 for event in written)
    monkeypatch.setattr(write, "SIDE_BY_SIDE_POINTS", 10**9)
    monkeypatch.setattr(shard, "MOST_PARTS", 1)
    write_exports(made, tmp_path / "one by one", KINDS, nothing)
    for name in ("embeddings.npy", "chunks.parquet"):
        assert (tmp_path / "together" / name).read_bytes() == (tmp_path / "one by one" / name).read_bytes()
    records = [read_record(tmp_path / folder / "qdrant") for folder in ("together", "one by one")]
    assert all(records)
    for name in ("ids", "payloads", "vectors"):
        assert np.array_equal(*(getattr(record, name) for record in records))


def test_a_shard_of_several_processes_has_every_point_and_can_be_used(made: Points, tmp_path: Path) -> None:
    write_exports(made, tmp_path, ("qdrant",), nothing)
    path = tmp_path / "qdrant"
    assert names(path) == ["edge_config.json", "segments", "written-points.npz"]
    assert len(names(path / "segments")) == PARTS
    vectors = next(made.blocks()).vectors[""]
    first = point_id("docs", "chunk-0")
    loaded = EdgeShard.load(str(path))
    loaded.optimize()
    loaded.close()
    assert check_export(tmp_path, "qdrant", read_export_journal(tmp_path)["qdrant"]).problem is None
    loaded = EdgeShard.load(str(path))
    for row in (0, 1, 1023):
        (found,) = loaded.search(SearchRequest(query=Query.Nearest(vectors[row].tolist()), limit=1, with_payload=True))
        assert found.payload is not None
        assert found.payload["chunk_id"] == f"chunk-{row}"
    loaded.update(UpdateOperation.upsert_points([Point(id=first, vector=[1.0] * DIM, payload={"changed": 1})]))
    loaded.close()
    loaded = EdgeShard.load(str(path))
    assert loaded.count(CountRequest(exact=True)) == len(RECORDS)
    records, _ = loaded.scroll(ScrollRequest(limit=len(RECORDS), with_payload=True))
    assert [each.payload for each in records if str(each.id) == first] == [{"changed": 1}]
    loaded.close()
    problem = check_export(tmp_path, "qdrant", read_export_journal(tmp_path)["qdrant"]).problem
    assert problem is not None
    assert "1 point with another payload; 1 point with another vector" in problem


def test_an_untried_version_of_edge_writes_with_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shard.part_count(len(RECORDS)) == PARTS, "try this version of Edge, and add it to JOINED_VERSIONS"
    monkeypatch.setattr(shard, "edge_version", lambda: "99.0.0")
    assert shard.part_count(len(RECORDS)) == 1


def test_a_second_run_writes_nothing_and_a_damaged_export_alone_is_written_again(
    made: Points, tmp_path: Path, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_exports(made, tmp_path, KINDS, nothing)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    started = len(children)
    write_exports(during(made, lambda: pytest.fail("points are read"), 0), tmp_path, KINDS, nothing)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert len(children) == started
    os.truncate(tmp_path / "chunks.parquet", 1000)
    write_exports(made, tmp_path, KINDS, nothing)
    assert pq.read_table(tmp_path / "chunks.parquet").num_rows == len(RECORDS)
    changed = {path.name for path in before if path.stat().st_mtime_ns != before[path]}
    assert changed == {"chunks.parquet"}


@pytest.mark.parametrize("which", [0, PARTS - 1])
def test_a_process_that_is_killed_fails_the_shard_alone(
    made: Points, tmp_path: Path, children: list[Child], which: int
) -> None:
    def kill() -> None:
        while len(children) < PARTS:
            threading.Event().wait(0.01)
        os.kill(children[which].pid, signal.SIGKILL)

    with pytest.raises(OutputError, match=r"its process was killed \(SIGKILL\)"):
        write_exports(during(made, kill), tmp_path, KINDS, nothing)
    assert names(tmp_path) == ["chunks.parquet", "embeddings.npy", "store"]
    assert set(read_export_journal(tmp_path)) == {"npy", "parquet"}
    assert all(map(has_ended, children))


def test_a_stop_ends_all_of_them_and_leaves_nothing(made: Points, tmp_path: Path, children: list[Child]) -> None:
    stop = StopSwitch()
    points = made.fed_by(made._read_blocks, stop)
    with pytest.raises(StoppedError, match="the deadline is near"):
        write_exports(during(points, lambda: stop.stop("the deadline is near")), tmp_path, KINDS, nothing)
    assert_nothing_is_left(tmp_path, children)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "Input/output error")])
def test_an_interrupt_or_an_error_ends_all_of_them_and_leaves_nothing(
    made: Points, tmp_path: Path, children: list[Child], error: BaseException
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        write_exports(during(made, fail), tmp_path, KINDS, nothing)
    assert_nothing_is_left(tmp_path, children)


def test_an_error_of_one_ends_all_of_them(
    made: Points, tmp_path: Path, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(points: Points, path: Path) -> None:
        next(points.blocks())
        raise OSError(28, "No space left on device")

    broken = replace(find_export("npy"), write=fail)
    monkeypatch.setattr(write, "find_export", lambda kind: broken if kind == "npy" else find_export(kind))
    with pytest.raises(OSError, match="No space left"):
        write_exports(made, tmp_path, KINDS, nothing)
    assert all(map(has_ended, children))
    assert not [name for name in names(tmp_path) if name.endswith(".partial")]


def test_point_ids_of_many_chunks_are_those_of_each() -> None:
    ids = ["", "a", "é\0🙂", *(f"chunk-{number}" for number in range(100))]
    assert point_ids("docs", ids) == [point_id("docs", each) for each in ids]
