"""JSON files that are read whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.chunks.conftest import AGAIN, NAME, READ_TWO, TWO, Load, Read, as_json, as_lines
from ultimate_embedder.chunks.formats import json_text, whole_json
from ultimate_embedder.chunks.formats.json_list import TOO_LONG
from ultimate_embedder.chunks.formats.json_object import COLUMNS
from ultimate_embedder.chunks.shapes import LIST_KEYS
from ultimate_embedder.types import Rejected


def test_a_list_is_read_record_by_record(read: Read) -> None:
    assert read(as_json(TWO)) == READ_TWO


@pytest.mark.parametrize("key", LIST_KEYS)
def test_an_object_holds_its_list_under_a_known_key(read: Read, key: str) -> None:
    assert read(as_json({"source": "x.pdf", key: TWO})) == READ_TWO


def test_json_lines_are_read_from_a_json_file(read: Read) -> None:
    assert read(as_lines(TWO)) == READ_TWO


def test_one_object_with_a_text_is_one_record(read: Read) -> None:
    assert read(as_json(TWO[0])) == [(0, TWO[0])]


def test_an_empty_list_has_no_records(read: Read) -> None:
    assert read(b"[]") == []


def test_windows_separators_stay_as_they_are(read: Read) -> None:
    record = {"text": "C:\\docs\\a.md", "metadata": {"source_file": "Docs\\Guide\\01.md"}}
    assert read(as_json([record])) == [(0, record)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_unicode_encodings_are_recognised(read: Read, encoding: str) -> None:
    assert read('[{"text": "naïve 日本 😀"}]'.encode(encoding)) == [(0, {"text": "naïve 日本 😀"})]


def test_nul_bytes_after_a_whole_list_are_no_loss(read: Read) -> None:
    assert read(as_json(TWO) + b"\0" * 512) == READ_TWO


def test_a_file_that_is_not_json_is_rejected_as_such(read: Read) -> None:
    reason = f"not valid JSON (Expecting value) at line 1 column 1; no record before it could be read. {AGAIN}"
    assert read(b"# A heading\n\nSome words.\n") == [Rejected(NAME, 0, reason)]


@pytest.mark.parametrize(("content", "keys"), [(b"{}", "none"), (b'{"pages": [], "chunks": {}}', "pages, chunks")])
def test_an_object_without_a_list_names_its_keys(read: Read, content: bytes, keys: str) -> None:
    reason = f"the object has no list under {', '.join(LIST_KEYS)}; its keys are: {keys}"
    assert read(content) == [Rejected(NAME, None, reason)]


@pytest.mark.parametrize("record", [{"page_content": "one"}, {"Body": "one", "tags": []}, {"anything": "one"}])
def test_one_object_that_may_have_a_text_is_one_record(read: Read, record: Any) -> None:
    assert read(as_json(record)) == [(0, record)]


def test_the_keys_of_a_mapping_of_records_are_ids_of_those_that_have_none(read: Read) -> None:
    content = as_json({"a": {"text": "one"}, "b": {"content": "two", "id": "c"}})
    assert read(content) == [(0, {"id": "a", "text": "one"}), (1, {"content": "two", "id": "c"})]


def test_lists_of_ids_and_metadata_belong_to_the_list_of_documents(read: Read) -> None:
    content = as_json(
        {"ids": ["a", "b"], "embeddings": None, "documents": ["one", "two"], "metadatas": [{"n": 1}, None]}
    )
    assert read(content) == [(0, {"text": "one", "id": "a", "metadata": {"n": 1}}), (1, {"text": "two", "id": "b"})]


@pytest.mark.parametrize(
    "table",
    [
        {"text": {"0": "one", "1": "two"}, "id": {"0": 1, "1": 2}},
        {"text": ["one", "two"], "id": [1, 2]},
        {"columns": ["text"], "index": [0, 1], "data": [["one"], ["two"]]},
    ],
    ids=["columns", "lists", "split"],
)
def test_a_table_by_columns_is_rejected_with_the_way_to_write_it(read: Read, table: Any) -> None:
    assert read(as_json(table)) == [Rejected(NAME, None, COLUMNS)]


def test_a_lone_surrogate_in_a_utf_16_file_rejects_its_record(load: Load) -> None:
    texts, rejected = load('["one", "a\ud83d!"]'.encode("utf-16", "surrogatepass"))
    assert texts == ["one"]
    assert rejected == [Rejected(NAME, 1, "the text is not valid Unicode at character 1: lone surrogate U+D83D")]


def test_an_empty_json_file_is_rejected(read: Read) -> None:
    assert read(b"") == [Rejected(NAME, None, "the file is empty")]


def test_a_record_nested_beyond_reading_rejects_only_itself(read: Read) -> None:
    deep = b"[" * 100_000 + b'"]\\""' + b"]" * 100_000
    rejected = Rejected(NAME, 1, "the record is nested too deeply")
    assert read(b'["one", ' + deep + b', "two"]') == [(0, "one"), rejected, (2, "two")]
    assert read(b'{"chunks": ["one", ' + deep + b', "two"], "n": 1}') == [(0, "one"), rejected, (2, "two")]
    assert read(b'{"meta": ' + deep + b', "chunks": ["one", "two"]}') == [(0, "one"), (1, "two")]
    assert read(deep) == [Rejected(NAME, 0, "the record is nested too deeply")]


def test_an_object_nested_beyond_reading_is_rejected(read: Read) -> None:
    assert read(b'{"a":' * 100_000 + b"1" + b"}" * 100_000) == [Rejected(NAME, None, "the JSON is nested too deeply")]


@pytest.mark.parametrize("block", [1, 7, 64])
def test_a_list_is_read_in_blocks_of_any_size(read: Read, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(json_text, "BLOCK_CHARACTERS", block)
    records: list[Any] = [-1.5e-7, 123456, True, None, "é😀 \\", {"text": "one", "n": [1, {"a": 2}]}, [], {}]
    assert read(json.dumps(records, indent=1).encode()) == list(enumerate(records))
    *kept, rejected = read(json.dumps(records, indent=1).encode()[:-1] + b",\n x]")
    assert kept == list(enumerate(records))
    line, column = json.dumps(records, indent=1).count("\n") + 2, 2
    assert rejected.reason.startswith(f"not valid JSON (Expecting value) at line {line} column {column}; the 8 records")


@pytest.mark.parametrize("longest", [20, 70])
def test_a_record_beyond_the_limit_rejects_only_itself(
    read: Read, monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    monkeypatch.setattr(json_text, "BLOCK_CHARACTERS", 8)
    monkeypatch.setattr(json_text, "LARGEST_RECORD", longest)
    long = json.dumps({"text": 'x\\"]}' * 200, "deep": [[["["]]]})
    kept = [{"text": "one"}, "two"]
    assert read(f'["a", {long}, {json.dumps(kept[0])}, "{"y" * 500}", "two"]'.encode()) == [
        (0, "a"),
        Rejected(NAME, 1, TOO_LONG),
        (2, kept[0]),
        Rejected(NAME, 3, TOO_LONG),
        (4, "two"),
    ]


def test_an_object_beyond_the_limit_is_rejected(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_json, "LARGEST_OBJECT", 100)
    [rejected] = read(json.dumps({"chunks": ["word " * 50]}, indent=1).encode())
    assert rejected.reason.startswith("the file is an object of more than")
    assert read(json.dumps(["word " * 50], indent=1).encode()) == [(0, "word " * 50)]
