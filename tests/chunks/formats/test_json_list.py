"""JSON that is truncated or damaged: the records before the damage are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.chunks.conftest import AGAIN, NAME, READ_TWO, TWO, Read, as_json
from ultimate_embedder.types import Rejected


def test_the_records_before_a_cut_are_kept(read: Read) -> None:
    *kept, rejected = read(b'[{"text": "one", "n": 1}, {"text": "two", "n": 2}, {"text": "thr')
    assert kept == READ_TWO
    reason = f"the file is truncated at line 1 column 61; the 2 records before it were read. {AGAIN}"
    assert rejected == Rejected(NAME, 2, reason)


def test_a_cut_in_an_indented_file_is_named_by_line(read: Read) -> None:
    content = json.dumps(TWO, indent=2).encode()
    cut = content[: content.index(b'"n": 2') + 3]
    [kept, rejected] = read(cut)
    assert kept == READ_TWO[0]
    assert rejected.reason.startswith("the file is truncated at line 8 column 8; ")


def test_a_cut_between_records_keeps_both(read: Read) -> None:
    *kept, rejected = read(as_json(TWO)[:-1])
    assert kept == READ_TWO
    reason = f"the file is truncated at line 1 column 50; the 2 records before it were read. {AGAIN}"
    assert rejected == Rejected(NAME, 2, reason)


def test_a_cut_in_an_object_with_a_list_keeps_the_records_before_it(read: Read) -> None:
    *kept, rejected = read(as_json({"source": "x.pdf", "chunks": [*TWO, {"text": "three"}]})[:-9])
    assert kept == READ_TWO
    reason = f"the file is truncated at line 1 column 91; the 2 records before it were read. {AGAIN}"
    assert rejected == Rejected(NAME, 2, reason)


@pytest.mark.parametrize("head", [{"meta": {"pages": 3}}, {"tags": ["a", "b"]}, {"source": "paper [1].pdf"}])
def test_what_stands_before_the_list_does_not_hide_it_from_a_cut(read: Read, head: dict[str, Any]) -> None:
    *kept, rejected = read(as_json({**head, "chunks": TWO})[:-2])
    assert kept == READ_TWO
    assert "the 2 records before it were read" in rejected.reason


def test_a_cut_file_gives_records_of_the_same_list_as_a_whole_one(read: Read) -> None:
    whole = as_json({"items": ["not a chunk"], "chunks": TWO})
    assert read(whole) == READ_TWO
    assert read(whole[:-2])[:-1] == READ_TWO


@pytest.mark.parametrize("content", [b"[", b"{", b'{"chunks"', b'{"chunks": [', b'[{"text": "on'])
def test_a_cut_before_the_first_record_ends_says_that_nothing_was_read(read: Read, content: bytes) -> None:
    [rejected] = read(content)
    assert rejected.reason.startswith("the file is truncated at line 1 column ")
    assert rejected.reason.endswith(f"; no record before it could be read. {AGAIN}")


def test_a_cut_at_any_byte_keeps_every_record_before_it(read: Read) -> None:
    whole = as_json([*TWO, "drei ä"])
    ends = [whole.index(b"}") + 1, whole.rindex(b"}") + 1, len(whole) - 1]
    for length in range(1, len(whole)):
        records = read(whole[:length])[:-1]
        assert len(records) == sum(end <= length for end in ends)


def test_a_cut_at_any_byte_is_called_a_cut(read: Read) -> None:
    whole = rb'[{"text": "caf\u00e9", "ok": true, "no": false, "none": null, "n": -1.5e3, "list": [1, {"a": 2}]}]'
    assert json.loads(whole)
    reasons = {whole[:length]: read(whole[:length])[-1].reason for length in range(1, len(whole))}
    assert [cut for cut, reason in reasons.items() if not reason.startswith("the file is truncated")] == []


def test_a_missing_comma_is_not_called_a_cut(read: Read) -> None:
    *kept, rejected = read(b'["one", "two"\n"three", "four"]')
    assert kept == [(0, "one"), (1, "two")]
    reason = "not valid JSON (Expecting ',' delimiter) at line 2 column 1; the 2 records before it were read."
    assert rejected == Rejected(NAME, 2, f"{reason} {AGAIN}")


@pytest.mark.parametrize("rest", ["]", "x", "[]", '["three"]'])
def test_what_follows_the_list_is_not_called_a_cut(read: Read, rest: str) -> None:
    *kept, rejected = read(b'["one", "two"]' + rest.encode())
    assert kept == [(0, "one"), (1, "two")]
    reason = "not valid JSON (Extra data) at line 1 column 15; the 2 records before it were read."
    assert rejected == Rejected(NAME, 2, f"{reason} {AGAIN}")
