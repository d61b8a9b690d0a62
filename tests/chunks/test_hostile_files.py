"""Files that are not what their name says, or damaged in ways of their own: each is rejected alone."""

from __future__ import annotations

import codecs
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.chunks.conftest import NAME, Load, Read
from ultimate_embedder.chunks import load_chunks
from ultimate_embedder.chunks.formats import json_lines, json_text
from ultimate_embedder.chunks.read import read_records
from ultimate_embedder.events import ChunkRejected, Event
from ultimate_embedder.types import Collection, Rejected

NAMES = [NAME, "a.jsonl", "a.parquet"]
SPECIAL = "the file cannot be read: it is a named pipe, a socket or a device"


@pytest.mark.parametrize("name", NAMES)
def test_a_named_pipe_is_rejected_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert list(read_records(tmp_path / name, name)) == [Rejected(name, None, SPECIAL)]


@pytest.mark.parametrize("name", NAMES)
def test_a_device_without_end_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/dev/zero")
    assert list(read_records(tmp_path / name, name)) == [Rejected(name, None, SPECIAL)]


def test_a_socket_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(NAME)
        [rejected] = read_records(tmp_path / NAME, NAME)
    assert isinstance(rejected, Rejected)
    assert rejected.reason.startswith("the file cannot be read: ")


@pytest.mark.parametrize("name", NAMES)
def test_links_in_a_circle_are_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / name)
    [rejected] = read_records(tmp_path / name, name)
    assert rejected == Rejected(name, None, "the file cannot be read: Too many levels of symbolic links")


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_with_the_name_of_a_chunk_file_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert list(read_records(tmp_path / name, name)) == [
        Rejected(name, None, "the file cannot be read: Is a directory")
    ]


def test_a_bad_file_does_not_spoil_its_collection(tmp_path: Path, seen: list[Event]) -> None:
    os.mkfifo(tmp_path / "a_chunks.json")
    (tmp_path / "b_chunks.json").write_bytes('["one", "two"]'.encode("utf-16")[:-7])
    (tmp_path / "c.parquet").write_bytes(b"PAR1" + b"\0" * 100)
    (tmp_path / "d.jsonl").write_bytes(b'"three"\n')
    collection = Collection("docs", tmp_path, tuple(sorted(tmp_path.iterdir())))
    loaded = load_chunks(collection, tmp_path / "spool", seen.append)
    assert [text for block in loaded.table.blocks() for text in block.texts] == ["one", "three"]
    assert (loaded.found, loaded.rejected) == (5, 3)
    rejected = [event.rejected for event in seen if isinstance(event, ChunkRejected)]
    assert [each.file for each in rejected] == ["a_chunks.json", "b_chunks.json", "c.parquet"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "utf-8"])
@pytest.mark.parametrize("name", [NAME, "a.jsonl"])
def test_a_file_cut_within_a_character_keeps_the_records_before_it(read: Read, name: str, encoding: str) -> None:
    records = ["one", "zwei 日本", "dr 😀"]
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    whole = ("\n".join(lines) if name == "a.jsonl" else f"[{', '.join(lines)}]").encode(encoding)
    assert read(whole, name) == list(enumerate(records))
    for length in range(len(whole) // 2, len(whole)):
        found = read(whole[:length], name)
        kept = [record for record in found if not isinstance(record, Rejected)]
        assert kept == list(enumerate(records))[: len(kept)]
        assert len(kept) >= 1
        if name == NAME:
            assert found[-1].reason.startswith("the file is truncated at line 1 column ")


MARKS = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}


@pytest.mark.parametrize("encoding", MARKS)
@pytest.mark.parametrize("name", [NAME, "a.jsonl"])
def test_every_byte_order_mark_is_understood_also_twice_and_alone(read: Read, name: str, encoding: str) -> None:
    content, mark = '"é日"'.encode(encoding), MARKS[encoding]
    for marked in (content, mark + content, mark + mark + content):
        assert read(marked, name) == [(0, "é日")]
    assert read(mark, name)[0].reason.startswith("the file ")


def test_json_lines_that_were_concatenated_with_their_marks_are_read(read: Read) -> None:
    assert read(b'\xef\xbb\xbf"one"\n\xef\xbb\xbf"two"\n', "a.jsonl") == [(0, "one"), (1, "two")]


@pytest.mark.parametrize("name", [NAME, "a.jsonl"])
def test_nul_bytes_before_the_records_are_skipped(read: Read, name: str) -> None:
    assert read(b"\0" * 512 + b'"one"', name) == [(0, "one")]


def test_a_utf_32_character_beyond_unicode_rejects_only_its_record(load: Load) -> None:
    parts = ['["one", "'.encode("utf-32-le"), (0x110000).to_bytes(4, "little"), '", "two"]'.encode("utf-32-le")]
    texts, rejected = load(b"".join(parts))
    assert texts == ["one", "two"]
    assert [each.position for each in rejected] == [1]


def test_a_line_beyond_the_limit_rejects_only_itself(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "LARGEST_RECORD", 20)
    monkeypatch.setattr(json_lines, "BLOCK_CHARACTERS", 8)
    content = b'"one"\n"' + b"x" * 100 + b'"\n"' + b"y" * 17 + b'"\n"two"'
    rejected = Rejected("a.jsonl", 1, "line 2 has more than 20 characters, which is the limit")
    assert read(content, "a.jsonl") == [(0, "one"), rejected, (2, "y" * 17), (3, "two")]


@pytest.mark.parametrize("record", [{"text": "one", "text\0": 1, "": 2, "\x1b[31m": 3}, {"\x1b[2J\0" + "k" * 999: 1}])
def test_odd_keys_are_kept_and_never_printed_as_they_are(load: Load, record: dict[str, Any]) -> None:
    texts, rejected = load(json.dumps([record]).encode())
    assert len(texts) + len(rejected) == 1
    for each in rejected:
        assert "\x1b" not in each.reason
        assert "\0" not in each.reason
        assert len(each.reason) < 200


def test_of_two_equal_keys_the_last_counts(load: Load) -> None:
    assert load(b'[{"text": "one", "text": "two", "text": "three"}]') == (["three"], [])


def test_a_file_that_shrinks_while_it_is_read_gives_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_text, "BLOCK_CHARACTERS", 64)
    path = tmp_path / NAME
    path.write_text(json.dumps(["word " * 5] * 5000))
    records = read_records(path, NAME)
    assert next(records) == (0, "word " * 5)
    os.truncate(path, 10)
    *_, last = records
    assert isinstance(last, Rejected)
    assert last.reason.startswith("the file is truncated at line 1 column ")
