from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ultimate_embedder import events
from ultimate_embedder.chunks import ChunkTable, LoadedChunks, find_collections, load_chunks, table
from ultimate_embedder.events import ChunkRejected, ChunksLoaded, Event, IdDuplicated, Warned
from ultimate_embedder.types import Collection, DuplicateId, Rejected

A, B = "a_chunks.json", "b_chunks.json"

Load = Callable[[dict[str, Any]], LoadedChunks]


@pytest.fixture
def load(tmp_path: Path, seen: list[Event]) -> Load:
    """Write files (a value that is not bytes as JSON) and load them as one collection."""

    def write_and_load(files: dict[str, Any]) -> LoadedChunks:
        seen.clear()
        return load_chunks(write(tmp_path, files), tmp_path / "work" / "spool", seen.append)

    return write_and_load


def write(folder: Path, files: dict[str, Any]) -> Collection:
    paths = []
    for name, value in files.items():
        path = folder / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
        paths.append(path)
    return Collection("docs", folder / "docs", tuple(paths))


def column(chunks: ChunkTable, name: str) -> list[Any]:
    return [value for block in chunks.blocks() for value in getattr(block, name)]


def ids(loaded: LoadedChunks) -> list[str]:
    return column(loaded.table, "ids")


def texts(loaded: LoadedChunks) -> list[str]:
    return column(loaded.table, "texts")


def records(loaded: LoadedChunks) -> list[dict[str, Any]]:
    return [json.loads(record) for record in column(loaded.table, "records")]


def rejected(seen: list[Event]) -> list[Rejected]:
    return [event.rejected for event in seen if isinstance(event, ChunkRejected)]


def duplicates(seen: list[Event]) -> list[DuplicateId]:
    return [event.duplicate for event in seen if isinstance(event, IdDuplicated)]


def warnings(seen: list[Event]) -> list[str]:
    return [event.message for event in seen if isinstance(event, Warned)]


def test_found_is_loaded_plus_rejected(load: Load, seen: list[Event]) -> None:
    loaded = load({A: ["one", "", {"no": "text"}, "two"], B: b'["three", "fo', "c.jsonl": b'"one"\n{\n'})
    assert (loaded.found, len(loaded.table), loaded.rejected) == (8, 4, 4)
    assert len(rejected(seen)) == loaded.rejected
    event = seen[-1]
    assert isinstance(event, ChunksLoaded)
    assert (event.collection, event.found, event.loaded, event.rejected) == ("docs", 8, 4, 4)
    assert event.distinct_texts == 3


def test_how_many_records_are_read_is_told_now_and_then(
    load: Load, seen: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events.Interval, "is_over", lambda self: True)
    load({A: [f"text {number}" for number in range(300)], B: ["" for _ in range(300)]})
    told = [(event.records, event.files) for event in seen if isinstance(event, events.ChunksRead)]
    assert told == [(0, 0), (256, 0), (512, 1)]


def test_the_docling_sample_loads_whole(docling_sample: Path, tmp_path: Path, seen: list[Event]) -> None:
    [collection] = find_collections(docling_sample).collections
    loaded = load_chunks(collection, tmp_path / "spool", seen.append)
    assert (loaded.found, loaded.rejected, len(loaded.table)) == (40, 0, 40)
    raw = [record for file in collection.files for record in json.loads(file.read_bytes())]
    assert texts(loaded) == [record.pop("text") for record in raw]
    assert records(loaded) == raw
    assert ids(loaded) == [record["metadata"]["chunk_id"] for record in raw]


def test_whitespace_around_and_inside_a_text_is_kept(load: Load) -> None:
    text = " \n\tdef f():\r\n    return 1\u00a0\u2028 \n\n"
    assert texts(load({A: [{"text": text}], "b.jsonl": json.dumps(text).encode()})) == [text, text]


def test_a_text_is_not_normalised(load: Load) -> None:
    odd = ["e\u0301", "\u00e9", "\ufb01", "\ufeffx", "a\u200bb", "\U0001f469\u200d\U0001f4bb"]
    assert texts(load({A: odd})) == odd


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the text is empty"),
        (" ", "the text is only whitespace"),
        ("\n\t\r\n", "the text is only whitespace"),
        ("\u00a0\u2003", "the text is only whitespace"),
    ],
)
def test_a_text_without_words_is_rejected(load: Load, seen: list[Event], text: str, reason: str) -> None:
    assert texts(load({A: ["one", {"text": text}, text]})) == ["one"]
    assert rejected(seen) == [Rejected(A, 1, reason), Rejected(A, 2, reason)]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"metadata": {"chunk_id": "981e82c14443-0001"}, "id": "other"}, "981e82c14443-0001"),
        ({"metadata": {"id": "m"}, "chunk_id": "other"}, "m"),
        ({"chunk_id": "c", "id": "i", "_id": "u"}, "c"),
        ({"id": "i", "_id": "u"}, "i"),
        ({"_id": "u"}, "u"),
        ({"id": 7}, "7"),
        ({"id": 0}, "0"),
        ({"metadata": {"chunk_id": 12345678901234567890}}, "12345678901234567890"),
        ({"metadata": None, "id": "i"}, "i"),
        ({"metadata": ["x"], "id": "i"}, "i"),
        ({"metadata": {"chunk_id": ""}, "id": "i"}, "i"),
        ({"chunk_id": None, "id": True, "_id": "u"}, "u"),
    ],
)
def test_the_id_is_taken_from_where_chunkers_write_it(load: Load, record: dict[str, Any], expected: str) -> None:
    assert ids(load({A: [{"text": "one", **record}]})) == [expected]


def test_a_chunk_without_an_id_gets_one_from_its_content(load: Load) -> None:
    first, second = ids(load({A: ["one", "two"]}))
    assert len(first) == 24
    assert first != second


def test_an_id_from_content_survives_records_inserted_before_it(load: Load) -> None:
    [before] = ids(load({A: ["one"]}))
    assert ids(load({A: ["new", {"text": "newer"}, "one"]}))[2] == before


def test_an_id_from_content_depends_on_the_file(load: Load, seen: list[Event]) -> None:
    first, second = ids(load({A: ["one"], B: ["one"]}))
    assert first != second
    assert duplicates(seen) == []


def test_a_duplicate_id_in_another_file_gets_the_file_name(load: Load, seen: list[Event]) -> None:
    loaded = load({A: [{"id": "x", "text": "one"}], f"sub/{B}": ["first", {"id": "x", "text": "two"}]})
    assert ids(loaded)[::2] == ["x", f"x@sub/{B}"]
    assert duplicates(seen) == [DuplicateId("x", f"sub/{B}", 1, f"x@sub/{B}")]


def test_a_duplicate_id_in_the_same_file_gets_the_position(load: Load, seen: list[Event]) -> None:
    loaded = load({A: [{"id": "x", "text": "one"}, {"id": "x", "text": "two"}]})
    assert ids(loaded) == ["x", f"x@{A}#1"]
    assert duplicates(seen) == [DuplicateId("x", A, 1, f"x@{A}#1")]


def test_a_duplicate_id_in_another_file_and_in_the_same_file_gets_both(load: Load, seen: list[Event]) -> None:
    x = {"id": "x", "text": "one"}
    assert ids(load({A: [x], B: [x, x, x]})) == ["x", f"x@{B}", f"x@{B}#1", f"x@{B}#2"]
    assert [each.position for each in duplicates(seen)] == [0, 1, 2]


def test_no_choice_of_ids_makes_two_chunks_share_one(load: Load) -> None:
    taken = ["x", f"x@{A}", f"x@{A}#3", "x"]
    loaded = load({A: [{"id": each, "text": "one"} for each in taken]})
    assert len(set(ids(loaded))) == 4


def test_equal_texts_without_ids_in_one_file_are_all_kept(load: Load) -> None:
    loaded = load({A: ["one", "one", "one"]})
    assert len(set(ids(loaded))) == 3
    assert loaded.table.distinct_texts() == 1


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_nan_and_infinity_become_null_with_a_warning(load: Load, seen: list[Event], number: str) -> None:
    record = f'[{{"text": "one", "score": {number}, "metadata": {{"deep": [1, {number}]}}, "n": 2.5}}]'
    assert records(load({A: record.encode()})) == [{"score": None, "metadata": {"deep": [1, None]}, "n": 2.5}]
    message = "record 0, score, metadata: NaN or infinity was replaced by null, as JSON has no such number"
    assert warnings(seen) == [f"{A} {message}"]


def test_all_metadata_is_kept_unchanged(load: Load, seen: list[Event]) -> None:
    record = {
        "metadata": {"section_path": ["1. Einführung", "日本"], "nested": {"a": {"b": [1, [2, {"c": None}]]}}},
        "advanced_scores": {
            "quality": 0.1,
            "big": 2**64 - 1,
            "least": -(2**63),
            "digits": "9" * 400,
            "tiny": 5e-324,
            "whole": 1.0,
            "off": False,
        },
        "": "no name",
        "digits": "9" * 400,
        "x.y": "dotted",
        "$ref": "#/a",
        "Text": "capital",
        "emoji 😀": "\u0000\u001f\u2028",
        "empty": {"list": [], "object": {}, "string": ""},
        "path": "Docs\\Guide\\01.md",
    }
    [kept] = records(load({A: [{"text": "one", **record}]}))
    assert json.dumps(kept) == json.dumps(record)
    assert warnings(seen) == []


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**400], ids=["2**64", "-2**63-1", "10**400"])
def test_an_integer_of_more_than_64_bits_becomes_text_with_a_warning(
    load: Load, seen: list[Event], number: int
) -> None:
    loaded = load({A: [{"text": "one", "n": number, "metadata": {"id": number, "deep": [1, number]}}]})
    digits = str(number)
    assert records(loaded) == [{"n": digits, "metadata": {"id": digits, "deep": [1, digits]}}]
    assert ids(loaded) == [digits]
    message = "record 0, n, metadata: an integer of more than 64 bits was replaced by its digits as text"
    assert warnings(seen) == [f"{A} {message}, as Qdrant has no such number"]


def test_what_is_replaced_in_many_records_of_a_file_is_one_warning(load: Load, seen: list[Event]) -> None:
    loaded = load({A: [{"text": f"text {n}", "n": 10**30} for n in range(5)], B: b'[{"text": "x", "n": NaN}]'})
    assert len(loaded.table) == 6
    assert [message.partition(": ")[0] for message in warnings(seen)] == [f"{A} record 0, n", f"{B} record 0, n"]
    assert warnings(seen)[0].endswith(", and in 4 more records of the file")


def test_files_and_positions_say_where_a_chunk_came_from(load: Load) -> None:
    loaded = load({A: ["one", "", "two"], f"sub/{B}": ["three"]})
    assert column(loaded.table, "files") == [A, A, f"sub/{B}"]
    assert column(loaded.table, "positions") == [0, 2, 0]


def test_blocks_give_rows_in_load_order(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "BLOCK_ROWS", 3)
    expected = [f"text {row}" for row in range(10)]
    loaded = load({A: expected[:4], B: expected[4:]})
    blocks = list(loaded.table.blocks())
    assert [(block.start, len(block.texts)) for block in blocks] == [(0, 3), (3, 3), (6, 3), (9, 1)]
    assert texts(loaded) == expected


def test_a_block_closes_early_when_its_texts_are_long(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "BLOCK_CHARACTERS", 60)
    loaded = load({A: ["x" * 4, "y" * 6, "z" * 50, "a"]})  # ids have 24 characters, and records two
    assert [block.texts for block in loaded.table.blocks()] == [["xxxx", "yyyyyy"], ["z" * 50], ["a"]]


def test_a_block_closes_early_when_its_records_are_large(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "BLOCK_CHARACTERS", 1000)
    loaded = load({A: [{"text": f"text {n}", "metadata": {"page": "x" * 400}} for n in range(5)]})
    assert [len(block.texts) for block in loaded.table.blocks()] == [3, 2]


def test_blocks_without_a_marked_row_are_left_out(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "BLOCK_ROWS", 2)
    loaded = load({A: [f"text {row}" for row in range(6)]})
    marked = loaded.table.keys[:, 0] == table.text_key("text 3")[0]
    assert [block.start for block in loaded.table.blocks(marked)] == [2]


def test_the_keys_are_those_of_the_texts_in_order(load: Load) -> None:
    loaded = load({A: ["one", "two", "one"]})
    assert [tuple(map(int, key)) for key in loaded.table.keys] == [table.text_key(text) for text in texts(loaded)]


def test_a_collection_without_records_loads_empty(load: Load) -> None:
    loaded = load({A: []})
    assert (loaded.found, loaded.rejected, len(loaded.table)) == (0, 0, 0)
    assert list(loaded.table.blocks()) == []


def test_a_failing_load_leaves_no_spool_file(tmp_path: Path) -> None:
    spool = tmp_path / "spool"

    def fail(event: Event) -> None:
        assert spool.exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_chunks(write(tmp_path, {A: ["one", ""]}), spool, fail)
    assert not spool.exists()


def test_removing_the_table_deletes_its_file(load: Load) -> None:
    loaded = load({A: ["one"]})
    loaded.table.remove()
    assert not loaded.table.path.exists()


def test_a_chunk_of_ten_megabytes_loads(load: Load) -> None:
    text = "0123456789" * 1_000_000
    assert texts(load({A: ["one", text, "two"]})) == ["one", text, "two"]


def test_a_file_whose_name_is_not_utf_8_is_loaded_or_rejected(tmp_path: Path, load: Load) -> None:
    name = b"caf\xe9_chunks.json".decode(errors="surrogateescape")
    try:
        (tmp_path / name).touch()
    except (OSError, UnicodeError):
        pytest.skip("this file system takes only Unicode names")
    loaded = load({A: ["one"], name: ["two"]})
    assert loaded.found == 2
