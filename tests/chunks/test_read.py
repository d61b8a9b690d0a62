"""What holds for chunk files of every format, and for JSON with and without lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chunks.conftest import NAME, READ_TWO, TWO, Load, Read, as_json, as_lines
from ultimate_embedder.chunks.read import read_records
from ultimate_embedder.types import Rejected


@pytest.mark.parametrize(("content", "name"), [(b'["one", "two"]', NAME), (b'"one"\n"two"', "a.jsonl")])
def test_bare_strings_are_records(read: Read, content: bytes, name: str) -> None:
    assert read(content, name) == [(0, "one"), (1, "two")]


@pytest.mark.parametrize("name", [NAME, "a.jsonl"])
def test_a_byte_order_mark_is_not_part_of_the_text(read: Read, name: str) -> None:
    assert read(b'\xef\xbb\xbf"text"', name) == [(0, "text")]


@pytest.mark.parametrize("name", [NAME, "a.jsonl"])
def test_json_lines_cut_in_the_last_line_lose_only_that_line(read: Read, name: str) -> None:
    *kept, rejected = read(as_lines([*TWO, "three"])[:-4], name)
    assert kept == READ_TWO
    assert rejected == Rejected(name, 2, "line 3 is not valid JSON (Unterminated string starting at column 1)")


@pytest.mark.parametrize("name", [NAME, "a.jsonl"])
def test_a_byte_that_is_not_utf_8_rejects_only_its_record(load: Load, name: str) -> None:
    lines = [b'{"text": "one"}', b'{"text": "caf\xe9"}', b'{"text": "two"}']
    content = b"\n".join(lines) if name == "a.jsonl" else b"[" + b",".join(lines) + b"]"
    texts, rejected = load(content, name)
    assert texts == ["one", "two"]
    assert rejected == [Rejected(name, 1, "the text is not valid Unicode at character 3: byte 0xe9 is not UTF-8")]


@pytest.mark.parametrize(("content", "name"), [(b'["a\0b\0"]', NAME), (b'"a\0b\0"', "a.jsonl")])
def test_raw_nul_bytes_in_a_text_are_kept(load: Load, content: bytes, name: str) -> None:
    assert load(content, name) == (["a\0b\0"], [])


@pytest.mark.parametrize(
    ("content", "name"), [(b"\0" * 4096, NAME), (b"\0" * 4096, "a.jsonl"), (b" \n\t\r\n", NAME), (b"\0 \n", NAME)]
)
def test_a_file_of_only_blanks_or_nul_bytes_is_rejected(read: Read, content: bytes, name: str) -> None:
    assert read(content, name) == [Rejected(name, None, "the file has only whitespace or NUL bytes")]


@pytest.mark.parametrize("name", [NAME, "a.jsonl"])
def test_a_number_too_long_to_read_is_no_damage(load: Load, name: str) -> None:
    digits = b"9" * 5000
    records = [b'"one"', b'{"text": "x", "n": ' + digits + b"}", b'{"text": ' + digits + b"}", digits, b'"two"']
    content = b"\n".join(records) if name == "a.jsonl" else b"[" + b",".join(records) + b"]"
    texts, rejected = load(content, name)
    assert texts == ["one", "x", "two"]
    assert [each.reason for each in rejected] == [
        "the text is a number, not a string",
        "the record is a number, not an object or a string",
    ]


@pytest.mark.parametrize("name", [NAME, "a.jsonl"])
def test_a_file_that_cannot_be_read_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    reason = "the file cannot be read: Is a directory"
    assert list(read_records(tmp_path / name, name)) == [Rejected(name, None, reason)]


@pytest.mark.parametrize("name", [NAME, "a.jsonl", "a.parquet"])
def test_a_file_that_has_gone_is_rejected(tmp_path: Path, name: str) -> None:
    [rejected] = list(read_records(tmp_path / name, name))
    assert isinstance(rejected, Rejected)
    assert rejected.reason.startswith("the file cannot be read: ")
    assert rejected.reason.endswith("No such file or directory")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "the record is null, not an object or a string"),
        (True, "the record is a boolean, not an object or a string"),
        (7, "the record is a number, not an object or a string"),
        (["text"], "the record is a list, not an object or a string"),
        ({}, "no text field (keys: none)"),
        ({"summary": "x", "id": 1}, "no text field (keys: summary, id). Try --text-field summary"),
        ({"text": None}, "the text is null, not a string"),
        ({"text": 1.5}, "the text is a number, not a string"),
        ({"text": False}, "the text is a boolean, not a string"),
        ({"text": ["x"]}, "the text is a list, not a string"),
        ({"text": {"x": 1}}, "the text is an object, not a string"),
    ],
)
def test_a_record_of_the_wrong_type_is_rejected_and_named(load: Load, record: Any, reason: str) -> None:
    assert load(as_json(["one", record, "two"])) == (["one", "two"], [Rejected(NAME, 1, reason)])


def test_a_byte_that_is_not_utf_8_in_metadata_rejects_its_record(load: Load) -> None:
    texts, rejected = load(b'[{"text": "one", "title": "caf\xe9"}, "two"]')
    assert texts == ["two"]
    assert rejected == [Rejected(NAME, 0, "the metadata is not valid Unicode: byte 0xe9 is not UTF-8")]


def test_a_lone_surrogate_rejects_only_its_record(load: Load) -> None:
    texts, rejected = load(rb'["one", "a\ud83d", "\ud83d\ude00"]')
    assert texts == ["one", "😀"]
    assert rejected == [Rejected(NAME, 1, "the text is not valid Unicode at character 1: lone surrogate U+D83D")]


@pytest.mark.parametrize("content", [b'{"caf\xe9": "x"}', rb'{"\ud83d": "x"}', b'[{"caf\xe9": "x"}]'])
def test_a_reason_can_always_be_written_down(load: Load, content: bytes) -> None:
    _, [rejected] = load(content)
    assert rejected.reason.encode()


@pytest.mark.parametrize(
    ("levels", "reasons"), [(100, []), (101, ["the metadata is nested more than 100 levels deep"])]
)
def test_metadata_may_be_nested_a_hundred_levels(load: Load, levels: int, reasons: list[str]) -> None:
    nested = b"[" * (levels - 1) + b"1" + b"]" * (levels - 1)  # the record itself is the first level
    _, rejected = load(b'[{"text": "one", "deep": ' + nested + b'}, "two"]')
    assert [each.reason for each in rejected] == reasons
