"""The Qdrant shard is written by a process that may die, on a disk that may be full, and then be used by others."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from qdrant_edge import CountRequest, EdgeShard, PayloadSchemaType, Point, Query, QueryRequest, UpdateOperation

from tests.support.points import DIM, make_points
from tests.support.small_disk import fill, make_read_only, make_room, small_disk
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed, open_output
from ultimate_embedder.api import run_and_report
from ultimate_embedder.child import Child
from ultimate_embedder.cli import main
from ultimate_embedder.edge import BuildShard, Rows
from ultimate_embedder.errors import OutputError, StoppedError, UsageError
from ultimate_embedder.events import CollectionFinished, Event, ExportStarted, Warned
from ultimate_embedder.export import check_export, read_export_journal, shard, write_exports
from ultimate_embedder.export.formats import find_export
from ultimate_embedder.export.journal import write_export_journal
from ultimate_embedder.export.shard_record import RECORD_NAME, read_record
from ultimate_embedder.files import folder_sha256
from ultimate_embedder.messages import write_message
from ultimate_embedder.options import make_config
from ultimate_embedder.stop import StopSwitch

RECORDS = [{"text": f"text {number}", "id": f"chunk-{number}", "page": number % 10} for number in range(300)]
MANY = [{"text": f"text {number}", "page": number} for number in range(2200)]
ONLY_SHARD = ("qdrant",)


def write(root: Path, records: list[dict[str, Any]], events: list[Event] | None = None, **options: Any) -> Path:
    """Export points of these records, and give the shard."""
    emit = events.append if events is not None else lambda event: None
    write_exports(make_points(root, records, **options), root / "docs", ONLY_SHARD, emit)
    return root / "docs" / "qdrant"


def state(path: Path) -> tuple[str | None, str | None]:
    """What is wrong with a shard, and what is worth knowing."""
    found = check_export(path.parent, "qdrant", read_export_journal(path.parent)["qdrant"])
    return found.problem, found.remark


@contextlib.contextmanager
def opened(path: Path) -> Iterator[EdgeShard]:
    loaded = EdgeShard.load(str(path))
    yield loaded
    loaded.close()


def count(path: Path) -> int:
    with opened(path) as loaded:
        return int(loaded.count(CountRequest(exact=True)))


def add_point(path: Path, identifier: int = 5) -> None:
    with opened(path) as loaded:
        loaded.update(UpdateOperation.upsert_points([Point(id=identifier, vector=[0.1] * DIM, payload={"mine": 1})]))


def add_index(path: Path) -> None:
    with opened(path) as loaded:
        loaded.update(UpdateOperation.create_field_index("page", PayloadSchemaType.Integer))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def warnings(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Warned)]


# -- a process that dies


def after_a_block(points: Any, act: Callable[[], None]) -> Any:
    """The same points, with something that happens while they are sent."""
    blocks = points.blocks

    def interrupted() -> Iterator[Any]:
        for block in blocks():
            yield block
            act()

    points.blocks = interrupted
    return points


def has_ended(child: Child) -> bool:
    try:
        os.kill(child.pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGBUS, "the disk is full, over its quota or failing (its process was ended by SIGBUS"),
        (
            signal.SIGKILL,
            "its process was killed (SIGKILL), as a system does that is out of memory. End other programs",
        ),
        (signal.SIGSEGV, "its process was ended by SIGSEGV. Run the same command again, or leave the shard out"),
        (signal.SIGABRT, "its process was ended by SIGABRT"),
    ],
)
def test_a_process_that_is_killed_is_an_error_in_words_and_leaves_nothing(
    tmp_path: Path, children: list[Child], number: signal.Signals, words: str
) -> None:
    points = after_a_block(make_points(tmp_path, MANY), lambda: os.kill(children[0].pid, number))
    with pytest.raises(OutputError) as caught:
        write_exports(points, tmp_path / "docs", ONLY_SHARD, lambda event: None)
    assert words in str(caught.value)
    assert "run the same command again" in str(caught.value).lower()
    assert not (tmp_path / "docs").exists() or not names(tmp_path / "docs")
    assert has_ended(children[0])


def test_what_edge_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = make_points(tmp_path, [{"text": "a", "id": "a"}])
    join = points._join
    monkeypatch.setattr(points, "_join", lambda rows: replace(join(rows), records=['{"a": NaN}']))
    with pytest.raises(OutputError, match=r"shard cannot be written to .*docs: .*NaN.*\. Run the same command again"):
        write_exports(points, tmp_path / "docs", ONLY_SHARD, lambda event: None)


def test_a_stop_ends_the_process_and_leaves_nothing(tmp_path: Path, children: list[Child]) -> None:
    stop = StopSwitch()
    points = after_a_block(make_points(tmp_path, MANY, stop=stop), lambda: stop.stop("interrupted by SIGINT"))
    with pytest.raises(StoppedError, match="SIGINT"):
        write_exports(points, tmp_path / "docs", ONLY_SHARD, lambda event: None)
    assert not names(tmp_path / "docs")
    assert has_ended(children[0])


def test_a_stop_during_the_last_part_ends_the_process_too(
    tmp_path: Path, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopSwitch()
    points = make_points(tmp_path, RECORDS, stop=stop)

    def sleep_instead(child: Child, *_: object) -> None:
        stop.stop("the deadline is near")  # the process waits for points: nothing but a signal ends it

    monkeypatch.setattr(shard, "_send", sleep_instead)
    with pytest.raises(StoppedError, match="deadline"):
        write_exports(points, tmp_path / "docs", ONLY_SHARD, lambda event: None)
    assert has_ended(children[0])


def test_an_interrupt_ends_the_process_and_leaves_nothing(tmp_path: Path, children: list[Child]) -> None:
    def press_ctrl_c() -> None:
        raise KeyboardInterrupt

    points = after_a_block(make_points(tmp_path, MANY), press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        write_exports(points, tmp_path / "docs", ONLY_SHARD, lambda event: None)
    assert not names(tmp_path / "docs")
    assert has_ended(children[0])


def test_a_process_whose_parent_is_gone_ends(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "ultimate_embedder.edge"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    write_message(child.stdin.fileno(), BuildShard(str(tmp_path / "shard"), "docs", {"": 2}))
    identifier = "0b5f0e1c-1111-4222-8333-444455556666"
    write_message(child.stdin.fileno(), Rows([identifier], ["a"], ["a.json"], ["a"], ["{}"], {"": b"\0" * 8}))
    child.stdin.close()  # as the system does for a process that is killed
    assert child.wait(60) == 1
    assert child.stdout is not None
    child.stdout.close()


def test_the_process_imports_neither_torch_nor_numpy() -> None:
    words = "import sys, ultimate_embedder.edge, qdrant_edge; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", words], capture_output=True, check=True, text=True).stdout.split()
    assert not {"torch", "numpy", "pyarrow", "pydantic", "subprocess", "qdrant_client"} & set(loaded)


# -- a full disk


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a file system")
def test_a_full_disk_is_an_error_in_words_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    points = make_points(tmp_path, MANY)
    with small_disk(tmp_path / "disk", 8) as disk:
        fill(disk, left_bytes=300_000)
        with pytest.raises(OutputError) as caught:
            write_exports(points, disk / "docs", ONLY_SHARD, lambda event: None)
        assert "the disk is full, over its quota or failing (its process was ended by SIGBUS" in str(caught.value)
        assert "Make room and run the same command again" in str(caught.value)
        assert not names(disk / "docs")


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a file system")
def test_a_disk_that_is_full_for_one_collection_fails_that_shard_alone(tmp_path: Path) -> None:
    chunks = write_collections(tmp_path, {"a": 50, "b": 20})
    with small_disk(tmp_path / "disk", 8) as disk:

        def watch(event: Event) -> None:
            if event.collection == "a" and isinstance(event, ExportStarted) and event.kind == "qdrant":
                fill(disk, left_bytes=30_000)
            elif event.collection == "a" and isinstance(event, CollectionFinished):
                make_room(disk)

        config = make_config(chunks, disk / "out", models=[str(tiny_model("bert"))], devices="cpu", quiet=True)
        summary = run_and_report(config, quiet=True, watch=[watch])
        assert {each.collection: each.status for each in summary.collections} == {"a": "failed", "b": "completed"}
        (failed,) = [each.error for each in summary.collections if each.error]
        assert "the disk is full" in failed
        assert names(disk / "out" / "a") == ["chunks.parquet", "embeddings.npy", "store"]
        assert open_output(disk / "out").summary == summary
        before = (disk / "out" / "a" / "embeddings.npy").stat().st_mtime_ns
        again = run_and_report(config, quiet=True)
        assert {each.status for each in again.collections} == {"completed"}
        assert (disk / "out" / "a" / "embeddings.npy").stat().st_mtime_ns == before
        # not where it is: Edge reads all of its files on loading, and holes in memory then take room
        assert count(open_output(disk / "out")["a"].copy_qdrant(tmp_path / "copy")) == 50


# -- a shard that others use


@pytest.mark.parametrize("use", ["query", "optimize"])
def test_a_shard_that_was_used_has_the_bytes_that_were_written(tmp_path: Path, use: str) -> None:
    path = write(tmp_path, RECORDS)
    with opened(path) as loaded:
        if use == "query":
            loaded.query(QueryRequest(query=Query.Nearest([0.1] * DIM), limit=3, with_payload=True))
        else:
            getattr(loaded, use)()
    assert state(path) == (None, None)


def as_an_earlier_edge(path: Path) -> None:
    """Files that Edge rewrites when it loads a shard."""
    config = json.loads((path / "edge_config.json").read_text())
    (path / "edge_config.json").write_text(json.dumps({**config, "on_disk_payload": True}, indent=1))


def test_a_shard_whose_files_were_rewritten_was_opened_and_is_right(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS)
    as_an_earlier_edge(path)
    assert state(path) == (None, "was opened since it was written")


@pytest.mark.parametrize("models", [("model",), ("one", "two")])
def test_points_and_indexes_that_were_added_are_told_and_right(tmp_path: Path, models: tuple[str, ...]) -> None:
    path = write(tmp_path, RECORDS, models=models)
    add_index(path)
    assert state(path) == (None, "was changed since it was written: payload index on page")
    if len(models) == 1:
        add_point(path)
        assert state(path)[1] == "was changed since it was written: payload index on page; 1 point added"


def test_points_of_ours_that_were_changed_are_found(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS)
    points = make_points(tmp_path, RECORDS)
    first, second, third = next(iter(points.blocks())).point_ids[:3]
    with opened(path) as loaded:
        loaded.update(UpdateOperation.delete_points([first]))
        loaded.update(UpdateOperation.set_payload([second], {"page": "another"}))
        loaded.update(UpdateOperation.upsert_points([Point(id=third, vector=[0.1] * DIM, payload={})]))
    problem, _ = state(path)
    assert problem == (
        "is damaged or was changed since it was written: "
        "1 point missing; 2 points with another payload; 1 point with another vector"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("segments/*/segment.json", "is damaged: Qdrant Edge cannot read it"),
        (
            "segments/*/mutable_id_tracker.mappings",
            "is damaged or was changed since it was written: 150 points missing",
        ),
        ("segments/*/vector_storage/vectors/chunk_0.mmap", "is damaged"),
    ],
)
def test_a_file_that_was_truncated_is_damage(tmp_path: Path, name: str, words: str) -> None:
    path = write(tmp_path, RECORDS)
    (file,) = path.glob(name)
    os.truncate(file, file.stat().st_size // 2 if "mmap" not in name else 4096)
    problem, _ = state(path)
    assert problem is not None
    assert problem.startswith(words)


def put_link_without_end(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def put_broken_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def put_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("put", [put_link_without_end, put_broken_link, put_pipe])
def test_what_is_no_file_of_a_shard_is_damage_and_is_not_followed(tmp_path: Path, put: Callable[[Path], None]) -> None:
    path = write(tmp_path, RECORDS)
    put(path / "edge_config.json")
    problem, _ = state(path)
    assert problem == "is damaged: edge_config.json is a link, a pipe or a device"
    with pytest.raises(UsageError, match=r"edge_config\.json is a link, a pipe or a device"):
        open_output(tmp_path)["docs"].copy_qdrant(tmp_path / "copy")
    write(tmp_path, RECORDS)
    assert state(path) == (None, None)


def test_a_record_of_what_was_written_is_neither_waited_for_nor_unpacked(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS)
    with np.load(path / RECORD_NAME) as columns:
        np.savez_compressed(tmp_path / "bomb.npz", **columns)
    (tmp_path / "bomb.npz").rename(path / RECORD_NAME)
    assert read_record(path) is None
    put_pipe(path / RECORD_NAME)
    assert read_record(path) is None


def test_a_vector_that_was_damaged_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS)
    (file,) = path.glob("segments/*/vector_storage/vectors/chunk_0.mmap")
    with open(file, "r+b") as vectors:
        vectors.seek(DIM * 4 * 7)
        vectors.write(b"\x3f\x3f\x3f\x3f")
    assert state(path)[0] == "is damaged or was changed since it was written: 1 point with another vector"


def test_a_shard_that_was_changed_is_left_alone_while_its_chunks_are_the_same(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS)
    add_index(path)
    add_point(path)
    events: list[Event] = []
    write(tmp_path, RECORDS, events)
    assert not warnings(events)
    assert count(path) == len(RECORDS) + 1


def test_a_shard_that_was_changed_is_kept_beside_the_new_one_of_other_chunks(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS)
    add_index(path)
    add_point(path)
    for number in (1, 2):
        events: list[Event] = []
        write(tmp_path, RECORDS[:-number], events)
        aside = path.with_name(f"qdrant-changed-{number}")
        assert warnings(events) == [
            f"{path} is written anew. The earlier one was changed since it was written (payload index on page; "
            f"1 point added): it is kept as {aside}, for you to use or delete."
        ]
        assert count(path) == len(RECORDS) - number
        assert count(aside) == len(RECORDS) - number + 2
        add_index(path)
        add_point(path)


def test_a_shard_that_was_only_opened_is_replaced_without_a_word(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS)
    as_an_earlier_edge(path)
    events: list[Event] = []
    write(tmp_path, RECORDS[1:], events)
    assert not warnings(events)
    assert names(path.parent) == ["qdrant", "store"]


def test_a_shard_that_was_changed_is_kept_where_the_new_one_fails(tmp_path: Path, children: list[Child]) -> None:
    path = write(tmp_path, RECORDS)
    add_index(path)
    points = make_points(tmp_path, RECORDS[1:])
    after_a_block(points, lambda: os.kill(children[-1].pid, signal.SIGKILL))
    with pytest.raises(OutputError):
        write_exports(points, path.parent, ONLY_SHARD, lambda event: None)
    assert names(path.parent) == ["qdrant", "store"]
    assert state(path) == (None, "was changed since it was written: payload index on page")


def test_an_outdated_shard_that_was_changed_is_kept_where_it_is_not_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS)
    add_index(path)
    events: list[Event] = []
    write_exports(make_points(tmp_path, RECORDS[1:]), path.parent, ("npy",), events.append)
    assert not path.exists()
    (warning,) = warnings(events)
    assert warning.endswith("it is kept as " + str(path.with_name("qdrant-changed-1")) + ", for you to use or delete.")


def test_a_shard_of_an_earlier_version_is_compared_with_its_points(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS)
    (path / "written-points.npz").unlink()
    assert state(path)[0] == (
        "is damaged or was changed since it was written: how is not known, as an earlier version wrote it"
    )
    inode = path.stat().st_ino
    write(tmp_path, RECORDS)  # the points are known
    assert path.stat().st_ino == inode


def test_the_checksum_of_an_earlier_version_tells_that_a_shard_is_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path, RECORDS)
    journal = read_export_journal(path.parent)
    journal["qdrant"]["sha256"] = folder_sha256(path, find_export("qdrant").passing_files)
    write_export_journal(path.parent, journal)
    assert state(path) == (None, None)


def test_verify_takes_a_shard_that_was_used_for_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chunks = write_collections(tmp_path, {"a": 20})
    out = tmp_path / "out"
    embed(chunks, out, models=[str(tiny_model("bert"))], quiet=True)
    add_index(out / "a" / "qdrant")
    add_point(out / "a" / "qdrant")
    assert main(["verify", str(out), "--sample", "0"]) == 0
    told = capsys.readouterr().out
    assert f"{out / 'a' / 'qdrant'} was changed since it was written: payload index on page; 1 point added" in told
    (file,) = (out / "a" / "qdrant").glob("segments/*/mutable_id_tracker.mappings")
    os.truncate(file, 40)
    assert main(["verify", str(out), "--sample", "0"]) == 1


def test_a_shard_that_cannot_be_copied_is_not_checked_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, RECORDS)
    add_index(path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
    with pytest.raises(OutputError, match="Set TMPDIR to a folder with more room"):
        state(path)
    write(tmp_path, RECORDS)
    assert state_after(monkeypatch, path) == (None, "was changed since it was written: payload index on page")


def state_after(monkeypatch: pytest.MonkeyPatch, path: Path) -> tuple[str | None, str | None]:
    monkeypatch.undo()
    return state(path)


# -- a read-only disk


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a file system")
def test_a_shard_on_a_read_only_disk_is_opened_from_a_copy_and_verified(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        path = write(disk, RECORDS)
        as_an_earlier_edge(path)
        make_read_only(disk)
        with pytest.raises(Exception, match="Read-only file system"):
            EdgeShard.load(str(path))
        assert state(path) == (None, "was opened since it was written")
        copy = open_output(disk)["docs"].copy_qdrant(tmp_path / "copy")
        assert count(copy) == len(RECORDS)
        with pytest.raises(UsageError, match="exists"):
            open_output(disk)["docs"].copy_qdrant(copy)


def write_collections(root: Path, sizes: dict[str, int]) -> Path:
    for name, size in sizes.items():
        folder = root / "chunks" / name
        folder.mkdir(parents=True)
        records = [{"text": f"{name} {number}", "page": number} for number in range(size)]
        (folder / "a_chunks.json").write_text(json.dumps(records), encoding="utf-8")
    return root / "chunks"
