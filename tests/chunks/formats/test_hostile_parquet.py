"""Parquet files that expand: a few bytes stand for more than memory, and the sizes in the metadata may lie."""

from __future__ import annotations

import datetime
import decimal
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chunks.conftest import Load, Read
from ultimate_embedder.chunks.formats import parquet, parquet_values
from ultimate_embedder.types import Rejected

MiB = 1 << 20
NAME = "a.parquet"


def written(columns: dict[str, Any], **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, **{"compression": "zstd", "dictionary_pagesize_limit": 1 << 30, **options})
    return file.getvalue()


def repeated(value: Any, times: int) -> pa.Array:
    """An array that refers to one value again and again."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), pa.array([value]))


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """What Arrow allocates meanwhile."""
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    yield counted
    pa.set_memory_pool(before)


def test_a_long_value_in_every_row_is_not_held_a_thousand_times(tmp_path: Path, pool: pa.MemoryPool) -> None:
    content = written({"text": [f"text {n}" for n in range(900)], "m": repeated("x" * MiB, 900)}, store_schema=False)
    assert len(content) < 100_000
    (tmp_path / NAME).write_bytes(content)
    found: Iterator[Any] = parquet.read(tmp_path / NAME, NAME)
    lengths = {len(record["m"]) for _, record in found}
    assert lengths == {MiB}
    assert pool.max_memory() < 64 * MiB  # instead of 900


def test_a_row_whose_list_repeats_a_long_value_is_rejected_alone(read: Read, pool: pa.MemoryPool) -> None:
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 501, 502], pa.int32()), repeated("x" * MiB, 502))
    content = written({"text": ["one", "two", "three"], "m": lists}, store_schema=False)
    assert len(content) < 10_000
    first, rejected, last = read(content, NAME)
    reason = "the row has more than 67,108,864 bytes, which is the limit"
    assert rejected == Rejected(NAME, 1, reason)
    assert (first[1]["text"], last[1]["text"]) == ("one", "three")
    assert pool.max_memory() < 64 * MiB  # instead of 500


def test_a_value_beyond_the_limit_is_rejected_alone(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_values, "LARGEST_RECORD", 1000)
    for options in ({"use_dictionary": False}, {}):
        first, rejected, last = read(written({"text": ["one", "x" * 2000, "three"]}, **options), NAME)
        assert isinstance(rejected, Rejected)
        assert (first[1]["text"], last[1]["text"]) == ("one", "three")


def test_large_values_are_read_few_at_a_time(read: Read, pool: pa.MemoryPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "BATCH_BYTES", 4 * MiB)
    texts = [f"{n}" + "x" * MiB for n in range(60)]
    content = written({"text": texts}, use_dictionary=False, data_page_size=1, write_batch_size=1)
    assert len(content) < 20_000
    before = pool.bytes_allocated()
    counted = pa.proxy_memory_pool(pool)
    pa.set_memory_pool(counted)
    assert [record["text"] for _, record in read(content, NAME)] == texts
    assert before + counted.max_memory() < 16 * MiB  # instead of 60


def test_a_page_beyond_the_limit_is_not_read(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "LARGEST_BATCH", 4 * MiB)
    content = written({"text": ["one"], "m": ["x" * (4 * MiB)]}, use_dictionary=False, write_statistics=False)
    [rejected] = read(content, NAME)
    assert rejected.position == 0
    assert rejected.reason.startswith("row group 0 is not read: it may take 4,194,3")
    assert "bytes of memory, most of them for m; 4,194,304 is the limit" in rejected.reason


def test_a_row_group_beyond_the_limit_does_not_spoil_the_others(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "LARGEST_BATCH", 100_000)
    numbers = [[1], [2] * 20_000, [3]]
    content = written({"text": ["one", "two", "three"], "n": numbers}, row_group_size=1)
    first, rejected, last = read(content, NAME)
    assert rejected.reason.startswith("row group 1 is not read: it may take ")
    assert (first, last) == ((0, {"text": "one", "n": [1]}), (2, {"text": "three", "n": [3]}))


def test_the_sizes_in_the_metadata_are_not_trusted(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "LARGEST_BATCH", 50_000)
    content = written({"text": ["x" * 60_000]}, use_dictionary=False, write_statistics=False)
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    size = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0).column(0).total_uncompressed_size
    lying = content[:start] + content[start:].replace(varint(2 * size), varint(2 * 64, length=len(varint(2 * size))))
    assert pq.ParquetFile(io.BytesIO(lying)).metadata.row_group(0).column(0).total_uncompressed_size == 64
    assert read(lying, NAME)[0].reason.startswith("row group 0 is not read: it may take 60,")


def varint(number: int, length: int = 0) -> bytes:
    """A number as Thrift writes it, with as many bytes as asked for."""
    digits = [number & 127]
    while (number := number >> 7) or len(digits) < length:
        digits.append(number & 127)
    return bytes([*(digit | 128 for digit in digits[:-1]), digits[-1]])


def test_rows_that_are_mere_repetition_are_rejected(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "LEAST_MOST_ROWS", 10)
    monkeypatch.setattr(parquet, "ROWS_PER_BYTE", 1)
    [rejected] = read(written({"text": repeated("one", 20_000)}), NAME)
    assert rejected.reason.startswith("the file says that it has 20,000 rows; ")


def test_a_file_that_would_fill_the_disk_is_read_up_to_the_limit(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "LEAST_MOST_BYTES", 10 * MiB)
    content = written({"text": [f"text {n}" for n in range(100)], "m": repeated("x" * MiB, 100)}, row_group_size=5)
    *rows, rejected = read(content, NAME)
    limit = 10 * MiB + 256 * len(content)
    assert len(rows) == 5 * (limit // (5 * MiB))
    reason = f"the file expands to more than {limit:,} bytes, which is the limit; {len(rows)} rows were read"
    assert rejected == Rejected(NAME, len(rows), reason)


def test_the_name_of_a_column_that_is_not_utf_8_rejects_the_file(read: Read) -> None:
    content = written({"text": ["one"], "cafe": ["x"]}, store_schema=False).replace(b"cafe", b"caf\xe9")
    assert read(content, NAME) == [Rejected(NAME, None, "the name of a column is not UTF-8")]


def test_control_characters_in_column_names_are_escaped(load: Load) -> None:
    _, [rejected] = load(written({"\x1b[2J": ["one"], "": ["x"], "y" * 500: [1]}), NAME)
    assert rejected.reason == f"no text field (columns: \\x1b[2J, , {'y' * 60}...)"


def test_a_text_column_of_bytes_is_read_as_utf_8(load: Load) -> None:
    content = written({"text": pa.array(["naïve".encode(), b"caf\xe9", b"two"], pa.binary())})
    texts, rejected = load(content, NAME)
    assert texts == ["naïve", "two"]
    assert rejected == [Rejected(NAME, 1, "the text is not valid Unicode at character 3: byte 0xe9 is not UTF-8")]


UNUSUAL: dict[str, tuple[pa.Array, Any]] = {
    "dictionary": (pa.array(["a", None]).dictionary_encode(), ["a", None]),
    "struct": (pa.array([{"a": {"b": [1, None]}}, None]), [{"a": {"b": [1, None]}}, None]),
    "map": (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), [[["k", 1]], None]),
    "decimal256": (pa.array([decimal.Decimal(10) ** 70, None], pa.decimal256(76, 0)), [str(10**70), None]),
    "duration": (pa.array([datetime.timedelta(days=1), None]), None),
    "large string": (pa.array(["a", None], pa.large_string()), ["a", None]),
    "half precision": (pa.array([1.5, None], pa.float16()), [1.5, None]),
    "null": (pa.nulls(2), [None, None]),
    "unsigned": (pa.array([2**64 - 1, None], pa.uint64()), [2**64 - 1, None]),
    "fixed size": (pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
    "tensor": (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int32(), [2]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
        ),
        [[1, 2], [3, 4]],
    ),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_columns_of_unusual_types_are_kept(read: Read, kind: str) -> None:
    column, expected = UNUSUAL[kind]
    for store_schema in (True, False):
        found = read(written({"text": ["one", "two"], "x": column}, store_schema=store_schema), NAME)
        values = [record["x"] for _, record in found]
        assert expected is None or values == expected
        assert len(values) == 2


@pytest.mark.parametrize("kind", ["dictionary", "large string", "string view"])
def test_texts_of_every_string_type_are_texts(load: Load, kind: str) -> None:
    texts = pa.array(["one", "two"])
    types = {"large string": pa.large_string(), "string view": pa.string_view()}
    try:
        content = written({"text": texts.dictionary_encode() if kind == "dictionary" else texts.cast(types[kind])})
    except pa.ArrowNotImplementedError:
        pytest.skip("this version of Arrow cannot write it")
    assert load(content, NAME) == (["one", "two"], [])


def test_two_fields_of_one_name_in_a_struct_reject_only_what_they_must(load: Load) -> None:
    twice = pa.StructArray.from_arrays([pa.array([1, 2]), pa.array([3, 4])], names=["a", "a"])
    texts, rejected = load(written({"text": ["one", "two"], "x": twice}), NAME)
    assert len(texts) + len(rejected) == 2


def test_an_encrypted_file_is_rejected(read: Read) -> None:
    content = written({"text": ["one"]})
    [rejected] = read(content[:-4] + b"PARE", NAME)
    assert rejected.reason.startswith("not a readable Parquet file (")


def test_a_file_that_shrinks_while_it_is_read_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(written({"text": [os.urandom(500).hex() for _ in range(4000)]}, row_group_size=1000))
    records = parquet.read(path, NAME)
    assert next(records)
    os.truncate(path, 1000)
    *_, last = records
    assert isinstance(last, Rejected)
    assert last.reason.startswith("row group 3 is not readable (")
