"""JSON Lines."""

from __future__ import annotations

import pytest

from tests.chunks.conftest import READ_TWO, TWO, Read, as_lines
from ultimate_embedder.types import Rejected


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "A.JSONL"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_json_lines_are_read_line_by_line(read: Read, name: str, end: str) -> None:
    assert read(as_lines(TWO, end), name) == READ_TWO


def test_blank_lines_count_as_positions_but_not_as_records(read: Read) -> None:
    assert read(b'"one"\n\n  \n"two"', "a.jsonl") == [(0, "one"), (3, "two")]


@pytest.mark.parametrize("separator", ["\u2028", "\u0085", "\r", "\x0c"])
def test_only_a_newline_ends_a_line(read: Read, separator: str) -> None:
    assert read(as_lines([f"one{separator}two"]), "a.jsonl") == [(0, f"one{separator}two")]


def test_utf_16_json_lines_are_recognised(read: Read) -> None:
    assert read('"naïve"\n"日本"\n'.encode("utf-16"), "a.jsonl") == [(0, "naïve"), (1, "日本")]


def test_a_bad_line_does_not_spoil_the_others(read: Read) -> None:
    reason = "line 2 is not valid JSON (Expecting value at column 1)"
    assert read(b'"one"\nnope\n"two"', "a.jsonl") == [(0, "one"), Rejected("a.jsonl", 1, reason), (2, "two")]


def test_a_line_nested_beyond_reading_rejects_only_itself(read: Read) -> None:
    content = b'"one"\n' + b"[" * 100_000 + b'\n"two"'
    rejected = Rejected("a.jsonl", 1, "line 2 is nested too deeply")
    assert read(content, "a.jsonl") == [(0, "one"), rejected, (2, "two")]
