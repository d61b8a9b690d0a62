"""Arrow files and streams are read batch by batch; damaged ones up to the damage, bombs up to a limit."""

from __future__ import annotations

import datetime
import io
import struct
from typing import Any

import pyarrow as pa
import pytest

from tests.chunks.conftest import Load, Read
from ultimate_embedder.chunks.formats import arrow
from ultimate_embedder.chunks.formats.format import LARGEST_BATCH
from ultimate_embedder.types import Rejected

NAME = "a.arrow"
FORMATS = ("file", "stream")
MiB = 1 << 20


def written(table: pa.Table, kind: str = "file", rows: int = 2, compression: str | None = None) -> bytes:
    file = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return file.getvalue()


def texts(count: int) -> pa.Table:
    return pa.table({"text": [f"text {number}" for number in range(count)], "n": list(range(count))})


def kept(items: list[Any]) -> list[Any]:
    return [item for item in items if not isinstance(item, Rejected)]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("kind", FORMATS)
def test_files_and_streams_are_read_batch_by_batch(read: Read, kind: str, compression: str | None) -> None:
    expected = [(number, {"text": f"text {number}", "n": number}) for number in range(5)]
    for name in (NAME, "a.feather"):
        assert read(written(texts(5), kind, compression=compression), name) == expected


def test_values_become_json_as_those_of_parquet_do(read: Read) -> None:
    table = pa.table(
        {
            "text": pa.array([b"bytes"], pa.binary()),
            "day": pa.array([datetime.date(2024, 2, 29)]),
            "raw": pa.array([b"\xff"]),
            "deep": pa.array([{"a": [1, None]}]),
            "kind": pa.array(["x"]).dictionary_encode(),
        }
    )
    # bytes become text or hexadecimal when it is known which of them are the text
    record = {"text": b"bytes", "day": "2024-02-29", "raw": b"\xff", "deep": {"a": [1, None]}, "kind": "x"}
    assert read(written(table), NAME) == [(0, record)]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_texts_of_every_string_type_are_read(read: Read, kind: pa.DataType) -> None:
    column = pa.array(["one", "a text of more than twelve bytes", None], pa.string()).cast(kind)
    found = read(written(pa.table({"text": column})), NAME)
    assert [record["text"] for _, record in found] == ["one", "a text of more than twelve bytes", None]


def test_dictionaries_that_change_between_batches_are_followed(read: Read) -> None:
    file = io.BytesIO()
    batches = [pa.record_batch({"text": pa.array([word]).dictionary_encode()}) for word in ("one", "two")]
    with pa.ipc.new_stream(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    assert read(file.getvalue(), NAME) == [(0, {"text": "one"}), (1, {"text": "two"})]


@pytest.mark.parametrize("kind", FORMATS)
def test_of_a_file_cut_in_half_the_rows_before_the_cut_are_read(read: Read, kind: str) -> None:
    whole = written(texts(400), kind, rows=10)
    found = read(whole[: len(whole) // 2], NAME)
    count = len(kept(found))
    assert kept(found) == [(number, {"text": f"text {number}", "n": number}) for number in range(count)]
    assert count > 100
    assert found[-1] == Rejected(NAME, count, f"not readable as Arrow (the file is truncated); {count} rows were read")


def test_a_stream_that_ends_between_two_batches_is_truncated_too(read: Read) -> None:
    whole = written(texts(4), "stream")
    without_end_mark = whole[:-8]
    found = read(without_end_mark, NAME)
    assert len(kept(found)) == 4
    assert found[-1].reason == "not readable as Arrow (the file is truncated); 4 rows were read"


def test_a_text_that_is_not_utf_8_rejects_its_row_alone(read: Read) -> None:
    column = pa.array([b"one", b"\xff\xfe", b"three"]).view(pa.string())
    found = read(written(pa.table({"text": column}), rows=3), NAME)
    assert kept(found) == [(0, {"text": "one"}), (2, {"text": "three"})]
    assert found[1] == Rejected(NAME, 1, 'the column "text" is not UTF-8 in this row')


def test_offsets_that_lie_are_found_before_a_value_is_read(read: Read) -> None:
    for lie in (10**6, -5, 2**31 - 1):
        offsets = pa.py_buffer(struct.pack("<4i", 0, lie, 6, 9))
        column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"onetwothr")])
        found = read(written(pa.table({"text": column}), rows=3), NAME)
        assert kept(found) == []
        assert found[0].reason.startswith("not readable as Arrow (")


def test_dictionary_indices_that_lie_are_found(read: Read) -> None:
    indices = pa.array([0, 99], pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["one"]), safe=False)
    found = read(written(pa.table({"text": column})), NAME)
    assert kept(found) == []


@pytest.mark.parametrize("size", [1 << 33, 1 << 50, -2])
def test_a_compressed_buffer_that_says_it_is_huge_is_not_believed(read: Read, size: int) -> None:
    table = pa.table({"text": ["word " * 2000]})
    whole = bytearray(written(table, compression="zstd"))
    at = whole.rindex(struct.pack("<q", 10_000))  # the text; the offsets have the number as well
    whole[at : at + 8] = struct.pack("<q", size)
    [rejected] = read(bytes(whole), NAME)
    if size > 0:
        assert f"{LARGEST_BATCH:,} is the limit. Write the file with fewer rows in a batch; 0" in rejected.reason


def test_a_batch_beyond_memory_is_not_read(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "LARGEST_BATCH", 1 * MiB)
    table = pa.table({"text": ["one", "two", "x" * 2 * MiB]})
    for compression in (None, "zstd"):
        found = read(written(table, rows=2, compression=compression), NAME)
        assert [record["text"] for _, record in kept(found)] == ["one", "two"]
        assert "1,048,576 is the limit" in found[-1].reason


def test_rows_without_content_are_limited(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "LEAST_MOST_ROWS", 1000)
    monkeypatch.setattr(arrow, "ROWS_PER_BYTE", 1)
    [rejected] = read(written(pa.table({"text": pa.nulls(10**6)}), rows=10**6), NAME)
    assert "rows, which is the limit" in rejected.reason


def test_a_text_that_many_rows_share_is_counted_for_each(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "LEAST_MOST_BYTES", 1 * MiB)
    monkeypatch.setattr(arrow, "BYTES_PER_BYTE", 1)
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int16()), pa.array(["x" * 10_000]))
    found = read(written(pa.table({"text": column}), rows=5000), NAME)
    assert "expands to more than" in found[-1].reason
    assert len(kept(found)) < 120


def test_a_row_beyond_the_limit_rejects_only_itself(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "LARGEST_RECORD", 100)
    found = read(written(pa.table({"text": ["one", "x" * 200, "three"]}), rows=3), NAME)
    assert found[1] == Rejected(NAME, 1, "the row has more than 100 characters, which is the limit")
    assert len(kept(found)) == 2


def test_run_end_encoded_columns_are_refused(read: Read) -> None:
    column = pa.RunEndEncodedArray.from_arrays(pa.array([2**20], pa.int32()), pa.array(["x"]))
    [rejected] = read(written(pa.table({"text": column}), rows=2**20), NAME)
    assert "is the limit" in rejected.reason or "run-end encoded columns are not supported" in rejected.reason


@pytest.mark.parametrize(
    "content", [b"", b"ARROW1\0\0", b"ARROW1", b"\xff\xff\xff\xff", b"text,n\none,1\n", b"\0" * 64]
)
def test_a_file_that_is_no_arrow_is_rejected_once(read: Read, content: bytes) -> None:
    [rejected] = read(content, NAME)
    assert isinstance(rejected, Rejected)


def test_a_feather_file_of_version_1_is_named(read: Read) -> None:
    [rejected] = read(b"FEA1" + b"\0" * 100, "a.feather")
    assert rejected.reason.startswith("a Feather file of version 1")


def test_a_table_without_rows_is_said_to_have_none(read: Read) -> None:
    assert read(written(texts(0)), NAME) == [Rejected(NAME, None, "the file has no rows")]


def test_a_file_without_a_text_column_is_rejected_once(load: Load) -> None:
    loaded, rejected = load(written(pa.table({"words": ["one", "two"]})), NAME)
    assert loaded == []
    assert [(each.position, each.reason) for each in rejected] == [
        (None, "no text field (columns: words). Try --text-field words")
    ]
