"""Parquet files."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chunks.conftest import READ_TWO, Load, Read
from ultimate_embedder.chunks import load_chunks
from ultimate_embedder.chunks.read import read_records
from ultimate_embedder.events import Event
from ultimate_embedder.types import Collection, Rejected


@pytest.fixture
def read_table(tmp_path: Path) -> Read:
    def read_file(columns: dict[str, Any]) -> list[Any]:
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        return list(read_records(tmp_path / "a.parquet", "a.parquet"))

    return read_file


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


def test_parquet_without_a_text_column_is_rejected_once_and_names_its_columns(tmp_path: Path, load: Load) -> None:
    pq.write_table(pa.table({"summary": ["one", "two"], "page": [1, 2]}), tmp_path / "raw")
    reason = "no text field (columns: summary, page). Try --text-field summary"
    assert load((tmp_path / "raw").read_bytes(), "a.parquet") == ([], [Rejected("a.parquet", None, reason)])


def test_the_text_column_of_a_parquet_file_may_have_another_name(tmp_path: Path, load: Load) -> None:
    pq.write_table(pa.table({"Content": ["one", "two"], "page": [1, 2]}), tmp_path / "raw")
    assert load((tmp_path / "raw").read_bytes(), "a.parquet") == (["one", "two"], [])


def test_parquet_bytes_become_hexadecimal_in_the_record(tmp_path: Path, seen: list[Event]) -> None:
    pq.write_table(pa.table({"text": ["one"], "raw": [b"\x00\xff"]}), tmp_path / "a.parquet")
    collection = Collection("docs", tmp_path, (tmp_path / "a.parquet",))
    [block] = load_chunks(collection, tmp_path / "spool", seen.append).table.blocks()
    assert block.records == ['{"raw": "00ff"}']


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


def test_a_damaged_row_group_does_not_spoil_the_others(read: Read, parquet_bytes: bytes) -> None:
    middle = len(parquet_bytes) // 2
    damaged = parquet_bytes[:middle] + b"\xff" * 2000 + parquet_bytes[middle + 2000 :]
    found = read(damaged, "a.parquet")
    rejected = [each for each in found if isinstance(each, Rejected)]
    rows = [each for each in found if not isinstance(each, Rejected)]
    assert 0 < len(rejected) < 4
    assert 3000 < len(rows) < 5000
    assert all(record["text"].startswith(f"{position} ") for position, record in rows)
    assert rows[0][0] == 0
    assert rows[-1][0] == 4999
    assert rejected[0].reason.startswith("row group ")
    assert rejected[0].reason.endswith(
        f"; {sum(position < rejected[0].position for position, _ in rows)} rows were read"
    )
