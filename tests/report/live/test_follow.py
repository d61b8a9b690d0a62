"""Following a log that is written, cut off, replaced, damaged, or no file at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ultimate_embedder import events
from ultimate_embedder.report import replay
from ultimate_embedder.report.live import follow
from ultimate_embedder.report.live.follow import Follower


def line(message: str, at: float = 1.0) -> bytes:
    """A line of a log."""
    return events.Warned(timestamp=at, message=message).as_line()


def read(follower: Follower) -> list[str]:
    """What was added."""
    follower.is_another()
    return [event.message for event in follower.read() if isinstance(event, events.Warned)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def append(log: Path, content: bytes) -> None:
    with open(log, "ab") as file:
        file.write(content)


def test_lines_are_read_when_they_are_complete(log: Path) -> None:
    follower = Follower(log)
    assert read(follower) == []
    assert not follower.exists
    append(log, line("one") + line("two")[:20])
    assert read(follower) == ["one"]
    append(log, line("two")[20:] + line("three"))
    assert read(follower) == ["two", "three"]
    assert read(follower) == []
    assert follower.exists


def test_a_log_that_is_cut_off_and_written_anew_is_read_from_its_beginning(log: Path) -> None:
    follower = Follower(log)
    append(log, line("one") + line("two"))
    assert read(follower) == ["one", "two"]
    log.write_bytes(line("first"))
    assert read(follower) == ["first"]


def test_another_run_is_noticed_also_if_it_has_written_more_meanwhile(log: Path) -> None:
    follower = Follower(log)
    append(log, line("one"))
    assert read(follower) == ["one"]
    log.write_bytes(line("first", at=2.0) + line("second", at=3.0))
    assert follower.is_another()
    assert read(follower) == ["first", "second"]


def test_a_log_that_is_replaced_is_read_from_its_beginning(log: Path) -> None:
    follower = Follower(log)
    append(log, line("one"))
    assert read(follower) == ["one"]
    shorter = log.with_name("shorter")
    shorter.write_bytes(line("one") + line("two"))
    shorter.replace(log)
    assert read(follower) == ["one", "two"]


def test_what_cannot_be_read_is_counted_and_left_out(log: Path) -> None:
    follower = Follower(log)
    damaged = [
        b"{",
        b'{"event": "Warned", "timestamp": NaN, "message": "x"}',
        b'{"event": "Warned"}',
        b'{"event": "CollectionsFound", "timestamp": 1.0, "collections": 1' + b"0" * 400 + b"}",  # no float is so large
        b"\x00\xff",
        b"[]",
    ]
    deep = b"[" * 100_000
    unknown = b'{"event": "Later", "timestamp": 1.0}'
    append(log, b"\n".join([*damaged, deep, unknown, b""]) + line("good"))
    assert read(follower) == ["good"]
    assert follower.damaged_lines == len(damaged) + 1


def test_a_line_without_end_takes_no_memory(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "LARGEST_LINE", 1000)
    monkeypatch.setattr(follow, "BLOCK_BYTES", 100)
    follower = Follower(log)
    append(log, b"x" * 5000)
    assert read(follower) == []
    assert len(follower._rest) <= 1000
    append(log, b"y" * 500 + b"\n" + line("good"))
    assert read(follower) == ["good"]
    assert follower.damaged_lines == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_pipe_or_a_device_in_its_place_is_no_log(log: Path) -> None:
    os.mkfifo(log)
    follower = Follower(log)
    assert read(follower) == []
    assert not follower.exists
    log.unlink()
    log.symlink_to("/dev/zero")
    assert read(follower) == []


def test_a_log_of_holes_that_is_larger_than_any_disk_is_not_read_to_its_end(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "LARGEST_LOG", 4 << 20)
    monkeypatch.setattr(replay, "LARGEST_LOG", 4 << 20)
    append(log, line("good"))
    os.truncate(log, 1 << 40)
    assert read(Follower(log)) == ["good"]
    assert len(list(replay.read_event_objects(log))) == 1
