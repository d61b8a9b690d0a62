from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ultimate_embedder.chunks import load_chunks
from ultimate_embedder.chunks.read import read_records
from ultimate_embedder.events import ChunkRejected, Event
from ultimate_embedder.types import Collection, Rejected

NAME = "a_chunks.json"
TWO = [{"text": "one", "n": 1}, {"text": "two", "n": 2}]
READ_TWO = [(0, TWO[0]), (1, TWO[1])]
AGAIN = "Write the file again with your chunker."

Read = Callable[..., list[Any]]
Load = Callable[..., tuple[list[str], list[Rejected]]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read_file(content: bytes, name: str = NAME) -> list[Any]:
        (tmp_path / name).write_bytes(content)
        return list(read_records(tmp_path / name, name))

    return read_file


@pytest.fixture
def read_table(tmp_path: Path) -> Read:
    def read_file(columns: dict[str, Any]) -> list[Any]:
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        return list(read_records(tmp_path / "a.parquet", "a.parquet"))

    return read_file


@pytest.fixture
def load(tmp_path: Path, seen: list[Event]) -> Load:
    def load_file(content: bytes, name: str = NAME) -> tuple[list[str], list[Rejected]]:
        (tmp_path / name).write_bytes(content)
        collection = Collection("docs", tmp_path, (tmp_path / name,))
        table = load_chunks(collection, tmp_path / "spool", seen.append).table
        rejected = [event.rejected for event in seen if isinstance(event, ChunkRejected)]
        return [text for block in table.blocks() for text in block.texts], rejected

    return load_file


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def as_lines(records: list[Any], end: str = "\n") -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + end for record in records).encode()


def test_a_list_is_read_record_by_record(read: Read) -> None:
    assert read(as_json(TWO)) == READ_TWO


@pytest.mark.parametrize("key", ["chunks", "data", "records", "items"])
def test_an_object_holds_its_list_under_a_known_key(read: Read, key: str) -> None:
    assert read(as_json({"source": "x.pdf", key: TWO})) == READ_TWO


def test_json_lines_are_read_from_a_json_file(read: Read) -> None:
    assert read(as_lines(TWO)) == READ_TWO


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "A.JSONL"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_json_lines_are_read_line_by_line(read: Read, name: str, end: str) -> None:
    assert read(as_lines(TWO, end), name) == READ_TWO


def test_blank_lines_count_as_positions_but_not_as_records(read: Read) -> None:
    assert read(b'"one"\n\n  \n"two"', "a.jsonl") == [(0, "one"), (3, "two")]


@pytest.mark.parametrize("separator", ["\u2028", "\u0085", "\r", "\x0c"])
def test_only_a_newline_ends_a_line(read: Read, separator: str) -> None:
    assert read(as_lines([f"one{separator}two"]), "a.jsonl") == [(0, f"one{separator}two")]


@pytest.mark.parametrize(("content", "name"), [(b'["one", "two"]', NAME), (b'"one"\n"two"', "a.jsonl")])
def test_bare_strings_are_records(read: Read, content: bytes, name: str) -> None:
    assert read(content, name) == [(0, "one"), (1, "two")]


def test_one_object_with_a_text_is_one_record(read: Read) -> None:
    assert read(as_json(TWO[0])) == [(0, TWO[0])]


def test_an_empty_list_has_no_records(read: Read) -> None:
    assert read(b"[]") == []


def test_windows_separators_stay_as_they_are(read: Read) -> None:
    record = {"text": "C:\\docs\\a.md", "metadata": {"source_file": "Docs\\Guide\\01.md"}}
    assert read(as_json([record])) == [(0, record)]


@pytest.mark.parametrize("name", [NAME, "a.jsonl"])
def test_a_byte_order_mark_is_not_part_of_the_text(read: Read, name: str) -> None:
    assert read(b'\xef\xbb\xbf"text"', name) == [(0, "text")]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_unicode_encodings_are_recognised(read: Read, encoding: str) -> None:
    assert read('[{"text": "naïve 日本 😀"}]'.encode(encoding)) == [(0, {"text": "naïve 日本 😀"})]


def test_utf_16_json_lines_are_recognised(read: Read) -> None:
    assert read('"naïve"\n"日本"\n'.encode("utf-16"), "a.jsonl") == [(0, "naïve"), (1, "日本")]


def test_the_records_before_a_cut_are_kept(read: Read) -> None:
    *kept, rejected = read(b'[{"text": "one", "n": 1}, {"text": "two", "n": 2}, {"text": "thr')
    assert kept == READ_TWO
    reason = f"the file is cut off at line 1 column 61; the 2 records before it were read. {AGAIN}"
    assert rejected == Rejected(NAME, 2, reason)


def test_a_cut_in_an_indented_file_is_named_by_line(read: Read) -> None:
    content = json.dumps(TWO, indent=2).encode()
    cut = content[: content.index(b'"n": 2') + 3]
    [kept, rejected] = read(cut)
    assert kept == READ_TWO[0]
    assert rejected.reason.startswith("the file is cut off at line 8 column 8; ")


def test_a_cut_between_records_keeps_both(read: Read) -> None:
    *kept, rejected = read(as_json(TWO)[:-1])
    assert kept == READ_TWO
    reason = f"the file is cut off at line 1 column 50; the 2 records before it were read. {AGAIN}"
    assert rejected == Rejected(NAME, 2, reason)


def test_a_cut_in_an_object_with_a_list_keeps_the_records_before_it(read: Read) -> None:
    *kept, rejected = read(as_json({"source": "x.pdf", "chunks": [*TWO, {"text": "three"}]})[:-9])
    assert kept == READ_TWO
    reason = f"the file is cut off at line 1 column 91; the 2 records before it were read. {AGAIN}"
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
    assert rejected.reason.startswith("the file is cut off at line 1 column ")
    assert rejected.reason.endswith(f"; nothing before it could be read. {AGAIN}")


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
    assert [cut for cut, reason in reasons.items() if not reason.startswith("the file is cut off")] == []


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


def test_nul_bytes_after_a_whole_list_are_no_loss(read: Read) -> None:
    assert read(as_json(TWO) + b"\0" * 512) == READ_TWO


def test_a_file_that_is_not_json_is_rejected_as_such(read: Read) -> None:
    reason = f"not valid JSON (Expecting value) at line 1 column 1; nothing before it could be read. {AGAIN}"
    assert read(b"# A heading\n\nSome words.\n") == [Rejected(NAME, 0, reason)]


def test_a_bad_line_does_not_spoil_the_others(read: Read) -> None:
    reason = "line 2 is not valid JSON (Expecting value at column 1)"
    assert read(b'"one"\nnope\n"two"', "a.jsonl") == [(0, "one"), Rejected("a.jsonl", 1, reason), (2, "two")]


@pytest.mark.parametrize("name", [NAME, "a.jsonl"])
def test_json_lines_cut_in_the_last_line_lose_only_that_line(read: Read, name: str) -> None:
    *kept, rejected = read(as_lines([*TWO, "three"])[:-4], name)
    assert kept == READ_TWO
    assert rejected == Rejected(name, 2, "line 3 is not valid JSON (Unterminated string starting at column 1)")


@pytest.mark.parametrize(("content", "keys"), [(b"{}", "none"), (b'{"pages": [], "chunks": {}}', "pages, chunks")])
def test_an_object_without_a_list_names_its_keys(read: Read, content: bytes, keys: str) -> None:
    reason = f"the object has no list under chunks, data, records, items; its keys are: {keys}"
    assert read(content) == [Rejected(NAME, None, reason)]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "the record is null, not an object or a string"),
        (True, "the record is a boolean, not an object or a string"),
        (7, "the record is a number, not an object or a string"),
        (["text"], "the record is a list, not an object or a string"),
        ({}, 'the record has no "text"; its keys are: none'),
        ({"content": "x", "id": 1}, 'the record has no "text"; its keys are: content, id'),
        ({"text": None}, "the text is null, not a string"),
        ({"text": 1.5}, "the text is a number, not a string"),
        ({"text": False}, "the text is a boolean, not a string"),
        ({"text": ["x"]}, "the text is a list, not a string"),
        ({"text": {"x": 1}}, "the text is an object, not a string"),
    ],
)
def test_a_record_of_the_wrong_type_is_rejected_and_named(load: Load, record: Any, reason: str) -> None:
    assert load(as_json(["one", record, "two"])) == (["one", "two"], [Rejected(NAME, 1, reason)])


@pytest.mark.parametrize("name", [NAME, "a.jsonl"])
def test_a_byte_that_is_not_utf_8_rejects_only_its_record(load: Load, name: str) -> None:
    lines = [b'{"text": "one"}', b'{"text": "caf\xe9"}', b'{"text": "two"}']
    content = b"\n".join(lines) if name == "a.jsonl" else b"[" + b",".join(lines) + b"]"
    texts, rejected = load(content, name)
    assert texts == ["one", "two"]
    assert rejected == [Rejected(name, 1, "the text is not valid Unicode at character 3: byte 0xe9 is not UTF-8")]


def test_a_byte_that_is_not_utf_8_in_metadata_rejects_its_record(load: Load) -> None:
    texts, rejected = load(b'[{"text": "one", "title": "caf\xe9"}, "two"]')
    assert texts == ["two"]
    assert rejected == [Rejected(NAME, 0, "the metadata is not valid Unicode: byte 0xe9 is not UTF-8")]


def test_a_lone_surrogate_rejects_only_its_record(load: Load) -> None:
    texts, rejected = load(rb'["one", "a\ud83d", "\ud83d\ude00"]')
    assert texts == ["one", "😀"]
    assert rejected == [Rejected(NAME, 1, "the text is not valid Unicode at character 1: lone surrogate U+D83D")]


def test_a_lone_surrogate_in_a_utf_16_file_rejects_its_record(load: Load) -> None:
    texts, rejected = load('["one", "a\ud83d!"]'.encode("utf-16", "surrogatepass"))
    assert texts == ["one"]
    assert rejected == [Rejected(NAME, 1, "the text is not valid Unicode at character 1: lone surrogate U+D83D")]


@pytest.mark.parametrize("content", [b'{"caf\xe9": "x"}', rb'{"\ud83d": "x"}', b'[{"caf\xe9": "x"}]'])
def test_a_reason_can_always_be_written_down(load: Load, content: bytes) -> None:
    _, [rejected] = load(content)
    assert rejected.reason.encode()


@pytest.mark.parametrize(("content", "name"), [(b'["a\0b\0"]', NAME), (b'"a\0b\0"', "a.jsonl")])
def test_raw_nul_bytes_in_a_text_are_kept(load: Load, content: bytes, name: str) -> None:
    assert load(content, name) == (["a\0b\0"], [])


@pytest.mark.parametrize(
    ("content", "name"), [(b"\0" * 4096, NAME), (b"\0" * 4096, "a.jsonl"), (b" \n\t\r\n", NAME), (b"\0 \n", NAME)]
)
def test_a_file_of_only_blanks_or_nul_bytes_is_rejected(read: Read, content: bytes, name: str) -> None:
    assert read(content, name) == [Rejected(name, None, "the file holds only blanks or NUL bytes")]


def test_an_empty_json_file_is_rejected(read: Read) -> None:
    assert read(b"") == [Rejected(NAME, None, "the file is empty")]


def test_json_nested_beyond_reading_is_rejected(read: Read) -> None:
    content = b"[" * 100_000 + b"]" * 100_000
    assert read(content) == [Rejected(NAME, None, "the JSON is nested too deeply to be read")]


def test_a_line_nested_beyond_reading_rejects_only_itself(read: Read) -> None:
    content = b'"one"\n' + b"[" * 100_000 + b'\n"two"'
    rejected = Rejected("a.jsonl", 1, "line 2 is nested too deeply to be read")
    assert read(content, "a.jsonl") == [(0, "one"), rejected, (2, "two")]


@pytest.mark.parametrize(
    ("levels", "reasons"), [(100, []), (101, ["the metadata is nested more than 100 levels deep"])]
)
def test_metadata_may_be_nested_a_hundred_levels(load: Load, levels: int, reasons: list[str]) -> None:
    nested = b"[" * (levels - 1) + b"1" + b"]" * (levels - 1)  # the record itself is the first level
    _, rejected = load(b'[{"text": "one", "deep": ' + nested + b'}, "two"]')
    assert [each.reason for each in rejected] == reasons


@pytest.mark.parametrize("name", [NAME, "a.jsonl"])
def test_a_number_too_long_to_read_rejects_only_its_record(load: Load, name: str) -> None:
    records = [b'"one"', b'{"text": "x", "n": ' + b"9" * 5000 + b"}", b'"two"']
    content = b"\n".join(records) if name == "a.jsonl" else b"[" + b",".join(records) + b"]"
    texts, rejected = load(content, name)
    assert (texts[0], len(rejected)) == ("one", 1)


def test_parquet_rows_are_records(read_table: Read) -> None:
    assert read_table({"text": ["one", "two"], "n": [1, 2]}) == READ_TWO


def test_parquet_rows_keep_their_positions_across_reading_blocks(read_table: Read) -> None:
    records = read_table({"text": [f"text {row}" for row in range(2500)]})
    assert records == [(row, {"text": f"text {row}"}) for row in range(2500)]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (datetime.datetime(2024, 1, 2, 3, 4, 5), "2024-01-02 03:04:05"),
        (b"\x00\xff", "00ff"),
        (decimal.Decimal("1.50"), "1.50"),
        ({"at": datetime.date(2024, 1, 2), "tags": ["a", "b"]}, {"at": "2024-01-02", "tags": ["a", "b"]}),
        (True, True),
        (None, None),
        (0.1, 0.1),
    ],
)
def test_parquet_values_that_json_has_not_become_text(read_table: Read, value: Any, plain: Any) -> None:
    assert read_table({"text": ["one"], "value": [value]}) == [(0, {"text": "one", "value": plain})]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1704164645123456789], pa.timestamp("ns")),
        pa.array([5], pa.time64("ns")),
        pa.array([5], pa.duration("ns")),
        pa.array([2**30], pa.date32()),
    ],
    ids=["timestamp[ns]", "time64[ns]", "duration[ns]", "year beyond 9999"],
)
def test_parquet_times_that_python_has_not_become_text(read_table: Read, column: pa.Array) -> None:
    [(_, record)] = read_table({"text": ["one"], "when": column})
    assert record["text"] == "one"
    assert isinstance(record["when"], str)


def test_parquet_text_that_is_not_utf_8_rejects_only_its_row(tmp_path: Path, load: Load) -> None:
    raw = pa.array([b"one", b"caf\xe9", b"two"])
    text = pa.StringArray.from_buffers(3, *raw.buffers()[1:])
    pq.write_table(pa.table({"text": text}), tmp_path / "raw")
    texts, rejected = load((tmp_path / "raw").read_bytes(), "a.parquet")
    assert texts == ["one", "two"]
    assert [each.position for each in rejected] == [1]


def test_parquet_without_a_text_column_names_its_columns(read_table: Read) -> None:
    reason = 'no "text" column; its columns are: body, page'
    assert read_table({"body": ["one"], "page": [1]}) == [Rejected("a.parquet", None, reason)]


def test_a_parquet_row_without_text_is_rejected(tmp_path: Path, load: Load) -> None:
    pq.write_table(pa.table({"text": ["one", None]}), tmp_path / "raw")
    texts, rejected = load((tmp_path / "raw").read_bytes(), "a.parquet")
    assert texts == ["one"]
    assert rejected == [Rejected("a.parquet", 1, "the text is null, not a string")]


@pytest.fixture
def parquet_bytes(tmp_path: Path) -> bytes:
    table = pa.table({"text": [f"{row} {'x' * 50}" for row in range(5000)]})
    pq.write_table(table, tmp_path / "raw", row_group_size=500)
    return (tmp_path / "raw").read_bytes()


def test_a_truncated_parquet_file_is_rejected(read: Read, parquet_bytes: bytes) -> None:
    [rejected] = read(parquet_bytes[: len(parquet_bytes) // 2], "a.parquet")
    assert (rejected.file, rejected.position) == ("a.parquet", 0)
    assert rejected.reason.startswith("not a readable Parquet file (Parquet magic bytes not found in footer.")
    assert rejected.reason.endswith("); 0 rows were read")


def test_an_empty_parquet_file_is_rejected(read: Read) -> None:
    reason = "not a readable Parquet file (Parquet file size is 0 bytes); 0 rows were read"
    assert read(b"", "a.parquet") == [Rejected("a.parquet", 0, reason)]


def test_a_damaged_parquet_file_gives_the_rows_before_the_damage(read: Read, parquet_bytes: bytes) -> None:
    middle = len(parquet_bytes) // 2
    damaged = parquet_bytes[:middle] + b"\xff" * 2000 + parquet_bytes[middle + 2000 :]
    *rows, rejected = read(damaged, "a.parquet")
    assert [position for position, _ in rows] == list(range(len(rows)))
    assert len(rows) > 500
    assert rejected.position == len(rows)
    assert rejected.reason.endswith(f"; {len(rows)} rows were read")


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
