"""Where text, id and metadata of a record are found, and what is said about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ultimate_embedder.chunks import load_chunks
from ultimate_embedder.chunks.fields import MOST_PLANS, FieldReader
from ultimate_embedder.config import FieldChoice
from ultimate_embedder.errors import UsageError
from ultimate_embedder.events import ChunkRejected, ChunksLoaded, Event, Warned
from ultimate_embedder.types import Collection, FieldsUsed

Found = tuple[list[tuple[str, str, dict[str, Any]]], list[str]]
LoadRecords = Callable[..., Found]


@pytest.fixture
def load_records(tmp_path: Path, seen: list[Event]) -> LoadRecords:
    """Load records with some fields chosen: id, text and rest of each chunk, and the reasons of rejections."""

    def load(*records: Any, **choice: str) -> Found:
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        collection = Collection("docs", tmp_path, (path,))
        table = load_chunks(collection, tmp_path / "spool", seen.append, FieldChoice(**choice)).table
        rows = [row for block in table.blocks() for row in zip(block.ids, block.texts, block.records, strict=True)]
        reasons = [event.rejected.reason for event in seen if isinstance(event, ChunkRejected)]
        return [(own, text, json.loads(rest)) for own, text, rest in rows], reasons

    return load


def fields_of(seen: list[Event]) -> tuple[FieldsUsed, ...]:
    return next(event.fields for event in seen if isinstance(event, ChunksLoaded))


# recognition


def test_our_own_records_stay_as_they_are(load_records: LoadRecords, seen: list[Event]) -> None:
    record = {"text": "one", "metadata": {"chunk_id": "c", "page": 1}, "id": 7, "meta": {"a": 1}, "content": "x"}
    chunks, _ = load_records(record)
    assert chunks == [("c", "one", {key: value for key, value in record.items() if key != "text"})]
    assert fields_of(seen) == (FieldsUsed("text", "metadata.chunk_id", None, None, 1),)


@pytest.mark.parametrize("key", ["content", "contents", "body", "chunk", "passage", "document", "Content", "TEXT"])
def test_plain_names_of_the_text_are_known(load_records: LoadRecords, key: str) -> None:
    assert load_records({key: "one", "id": 3, "page": 1}) == ([("3", "one", {"id": 3, "page": 1})], [])


def test_the_id_of_a_tool_comes_before_one_in_the_metadata(load_records: LoadRecords) -> None:
    chunks, _ = load_records({"page_content": "one", "id": "own", "metadata": {"id": "of the document"}})
    assert chunks == [("own", "one", {"id": "own", "metadata": {"id": "of the document"}})]


def test_a_tool_that_gave_no_id_leaves_it_to_the_metadata(load_records: LoadRecords) -> None:
    chunks, _ = load_records({"page_content": "one", "id": None, "metadata": {"chunk_id": "c"}})
    assert [own for own, _, _ in chunks] == ["c"]


def test_meta_becomes_metadata_and_what_is_in_its_way_is_kept(load_records: LoadRecords) -> None:
    chunks, _ = load_records({"content": "one", "id": "h", "meta": {"page": 1}, "metadata": "other"})
    assert chunks == [("h", "one", {"id": "h", "metadata": {"page": 1}, "_metadata": "other"})]


def test_a_text_with_meta_of_another_tool_is_not_docling(load_records: LoadRecords, seen: list[Event]) -> None:
    chunks, _ = load_records({"text": "one", "id": 1, "meta": {"page": 1}})
    assert chunks == [("1", "one", {"id": 1, "meta": {"page": 1}})]
    assert fields_of(seen)[0].tool is None


def test_what_a_wrapper_holds_may_be_anything(load_records: LoadRecords) -> None:
    wrapped = [{"lc": 1, "kwargs": inner} for inner in ({"page_content": "one"}, {"content": "two"}, "three", None)]
    chunks, reasons = load_records(*wrapped)
    assert [text for _, text, _ in chunks] == ["one", "two"]
    assert reasons == ["no text field (keys: lc, kwargs). Try --text-field kwargs", "no text field (keys: lc, kwargs)"]


def test_docling_is_recognised_whatever_metadata_is_chosen(load_records: LoadRecords, seen: list[Event]) -> None:
    record = {"text": "one", "id": "a", "meta": {"doc_items": [], "origin": {"filename": "x.pdf"}}}
    chunks, _ = load_records(record, metadata="meta.origin")
    assert chunks == [("a", "one", {"id": "a", "meta": {"doc_items": []}, "metadata": {"filename": "x.pdf"}})]
    assert fields_of(seen) == (FieldsUsed("text", "id", "meta.origin", "Docling", 1),)


def test_kinds_of_records_are_counted(load_records: LoadRecords, seen: list[Event]) -> None:
    load_records({"page_content": "one", "id": "a"}, "two", {"page_content": "three", "id": "b"}, {"body": "four"})
    assert fields_of(seen) == (
        FieldsUsed("page_content", "id", None, "LangChain", 2),
        FieldsUsed(None, None, None, None, 1),
        FieldsUsed("body", None, None, None, 1),
    )


def test_plans_for_ever_new_keys_do_not_fill_memory() -> None:
    reader = FieldReader()
    for number in range(3 * MOST_PLANS):
        fields = reader.read({f"key {number}": 1, "body": "one"})
        assert fields is not None
        assert fields.text == "one"
    assert len(reader._known) <= MOST_PLANS


# chosen fields


def test_a_path_leads_to_text_id_and_metadata(load_records: LoadRecords) -> None:
    record = {"doc": {"body": "one", "uid": 5, "about": {"page": 1}}, "n": 1}
    chunks, _ = load_records(record, text="doc.body", id="doc.uid", metadata="doc.about")
    assert chunks == [("5", "one", {"doc": {"uid": 5}, "n": 1, "metadata": {"page": 1}})]


def test_a_key_with_dots_comes_before_a_path(load_records: LoadRecords) -> None:
    chunks, _ = load_records({"meta.body": "flat", "meta": {"body": "nested"}}, text="meta.body")
    assert chunks[0][1:] == ("flat", {"meta": {"body": "nested"}})


def test_another_text_than_the_recognised_one_loses_nothing(load_records: LoadRecords) -> None:
    chunks, _ = load_records({"text": "long", "_text": 1, "summary": "short", "id": "a"}, text="summary")
    assert chunks == [("a", "short", {"id": "a", "_text": "long", "__text": 1})]


def test_the_text_may_be_inside_of_the_chosen_metadata(load_records: LoadRecords) -> None:
    chunks, _ = load_records({"meta": {"body": "one", "page": 1}, "id": "a"}, text="meta.body", metadata="meta")
    assert chunks == [("a", "one", {"id": "a", "metadata": {"page": 1}})]


@pytest.mark.parametrize("field", ["metadata.summary", "kwargs.metadata.summary"])
def test_a_path_may_or_may_not_begin_with_the_wrapper(load_records: LoadRecords, field: str) -> None:
    inner = {"page_content": "long", "id": "a", "metadata": {"summary": "short"}}
    chunks, _ = load_records({"lc": 1, "type": "constructor", "id": ["x"], "kwargs": inner}, text=field)
    assert chunks == [("a", "short", {"page_content": "long", "id": "a", "metadata": {}})]


@pytest.mark.parametrize(("title", "text", "embedded"), [("A", "b", "A b"), (" ", "b", "b"), ("A", "", "A")])
def test_a_title_goes_before_the_text(load_records: LoadRecords, title: str, text: str, embedded: str) -> None:
    chunks, _ = load_records({"_id": "1", "title": title, "text": text}, title="title")
    assert chunks == [("1", embedded, {"_id": "1", "title": title})]


# fields that are not there


def test_a_text_field_that_is_missing_rejects_the_record_with_a_suggestion(load_records: LoadRecords) -> None:
    chunks, reasons = load_records({"text": "one", "meta": {"body": "b"}}, text="meta.boby")
    assert chunks == []
    assert reasons == ["no field meta.boby (keys: text, meta). Try --text-field meta.body"]


def test_the_longest_text_is_suggested(load_records: LoadRecords) -> None:
    record = {"name": "x", "my words": "a longer one", "n": 3}
    assert load_records(record)[1] == ["no text field (keys: name, my words, n). Try --text-field 'my words'"]


@pytest.mark.parametrize(
    ("option", "field", "kind", "suggestion"),
    [
        ("id", "idd", "text or an integer", " Did you mean id?"),
        ("metadata", "text", "an object", ""),
        ("title", "head", "text", ""),
    ],
)
def test_a_field_that_no_record_has_is_an_error(
    load_records: LoadRecords, option: str, field: str, kind: str, suggestion: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_records({"text": "one", "id": 1}, {"text": "two", "id": 2}, **{option: field})
    said = f"--{option}-field {field}: none of the 2 records has {kind} there (keys: text, id).{suggestion}"
    assert str(caught.value) == said


def test_a_field_that_some_records_lack_is_a_warning(load_records: LoadRecords, seen: list[Event]) -> None:
    chunks, _ = load_records({"text": "one", "uid": "a"}, {"text": "two", "id": "b"}, id="uid")
    assert chunks[0][0] == "a"
    assert chunks[1][0] != "b"
    said = "--id-field: 1 of 2 records have no such field, the first of them is a.jsonl record 1"
    assert [event.message for event in seen if isinstance(event, Warned)] == [said]
