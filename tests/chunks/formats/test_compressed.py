"""Compressed files are read as what they hold; damaged ones up to the damage, bombs up to a limit."""

from __future__ import annotations

import gzip
import json
import random
import resource
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.chunks.conftest import READ_TWO, TWO, Read, as_json, as_lines
from ultimate_embedder.chunks.formats import compressed, json_lines
from ultimate_embedder.chunks.read import read_records
from ultimate_embedder.types import Rejected

MiB = 1 << 20
CSV = b"text,n\none,1\ntwo,2\n"
Compress = Callable[[bytes], bytes]


def zstd(content: bytes) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(content, asbytes=True)
    return packed


@pytest.fixture(params=[("gz", gzip.compress), ("zst", zstd)], ids=["gzip", "zstd"])
def kind(request: pytest.FixtureRequest) -> tuple[str, Compress]:
    found: tuple[str, Compress] = request.param
    return found


def incompressible(count: int) -> list[dict[str, str]]:
    rng = random.Random(7)
    return [{"text": f"{number} {rng.getrandbits(400):x}"} for number in range(count)]


@pytest.mark.parametrize(
    ("name", "content"), [("a.json", as_json(TWO)), ("a.jsonl", as_lines(TWO)), ("a.ndjson", as_lines(TWO))]
)
def test_compressed_json_is_read_like_json(read: Read, kind: tuple[str, Compress], name: str, content: bytes) -> None:
    suffix, compress = kind
    assert read(compress(content), f"{name}.{suffix}") == READ_TWO
    assert read(compress(content.decode().encode("utf-16")), f"{name}.{suffix}") == READ_TWO


def test_compressed_csv_is_read_like_csv(read: Read, kind: tuple[str, Compress]) -> None:
    suffix, compress = kind
    assert read(compress(CSV), f"a.csv.{suffix}") == read(CSV, "a.csv") != []


def test_the_content_counts_and_not_the_name(read: Read, kind: tuple[str, Compress]) -> None:
    assert read(as_lines(TWO), "a.jsonl.gz") == READ_TWO
    assert read(kind[1](as_lines(TWO)), "a.jsonl") == READ_TWO


def test_files_that_were_compressed_one_by_one_and_concatenated_are_read_to_the_end(
    read: Read, kind: tuple[str, Compress]
) -> None:
    suffix, compress = kind
    parts = b"".join(compress(as_lines([record])) for record in TWO)
    assert read(parts, f"a.jsonl.{suffix}") == READ_TWO


def test_zeros_after_a_gzip_file_are_padding(read: Read) -> None:
    assert read(gzip.compress(as_lines(TWO)) + b"\0" * 100_000, "a.jsonl.gz") == READ_TWO
    packed = b"\0\0".join(gzip.compress(as_lines([record])) for record in TWO)
    assert read(packed, "a.jsonl.gz") == READ_TWO


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_of_a_truncated_file_the_records_before_the_end_are_read(
    read: Read, kind: tuple[str, Compress], name: str
) -> None:
    suffix, compress = kind
    records = incompressible(5000)
    whole = compress(as_json(records) if name == "a.json" else as_lines(records))
    found = read(whole[: len(whole) // 2], f"{name}.{suffix}")
    kept = [record for record in found if not isinstance(record, Rejected)]
    assert kept == list(enumerate(records))[: len(kept)]
    assert len(kept) > 0.3 * len(records)  # zstd has blocks of 128 KiB
    word = "gzip" if suffix == "gz" else "zstd"
    assert found[-1].reason == f"the {word} file is truncated; {len(kept):,} records before it were read"


def test_a_gzip_file_gives_the_last_record_before_the_damage(read: Read) -> None:
    records = incompressible(500)
    packed = zlib.compressobj(wbits=31)
    parts = [packed.compress(as_lines([record])) + packed.flush(zlib.Z_FULL_FLUSH) for record in records]
    found = read(b"".join(parts), "a.jsonl.gz")
    assert [record for record in found if not isinstance(record, Rejected)] == list(enumerate(records))
    assert found[-1].reason == "the gzip file is truncated; 500 records before it were read"


def test_a_damaged_file_is_rejected(read: Read, kind: tuple[str, Compress]) -> None:
    suffix, compress = kind
    whole = bytearray(compress(as_lines(incompressible(2000))))
    del whole[len(whole) // 2 : len(whole) // 2 + 8]
    last = read(bytes(whole), f"a.jsonl.{suffix}")[-1]
    assert isinstance(last, Rejected)
    assert "file is " in last.reason


@pytest.mark.parametrize(
    "content", [b"\x1f\x8b", b"\x1f\x8bgarbage", b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd\xff\xff\xff"]
)
def test_magic_bytes_alone_are_rejected_once(read: Read, content: bytes) -> None:
    [rejected] = read(content, "a.jsonl.gz")
    assert "file is " in rejected.reason


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.csv"])
def test_a_bomb_is_read_up_to_the_limit_in_bounded_memory(
    tmp_path: Path, kind: tuple[str, Compress], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    suffix, compress = kind
    monkeypatch.setattr(compressed, "LEAST_MOST_BYTES", MiB // 4)
    monkeypatch.setattr(compressed, "BYTES_PER_BYTE", 2)
    line = {"a.json": b'{"text": "one"},\n', "a.jsonl": b'{"text": "one"}\n', "a.csv": b"one,two\n"}[name]
    start = {"a.json": b"[", "a.jsonl": b"", "a.csv": b"text,n\n"}[name]
    path = tmp_path / f"{name}.{suffix}"
    path.write_bytes(compress(start + line * (32 * MiB // len(line))))
    most = MiB // 4 + 2 * path.stat().st_size
    count = 0
    tracemalloc.start()
    for item in read_records(path, path.name):
        count += not isinstance(item, Rejected)
        last = item
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    reason = f"the file expands to more than {most:,} bytes, which is the limit; {count:,} records before it were read"
    assert isinstance(last, Rejected)
    assert last.reason == reason
    assert 0.9 * most < count * len(line) <= most
    assert peak < 16 * MiB


def test_a_line_without_end_in_a_bomb_takes_no_more_memory_than_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "LARGEST_RECORD", 2 * MiB)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd(b'{"text": "' + bytes(100 * MiB)))
    assert path.stat().st_size < 64 << 10
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    items = list(read_records(path, path.name))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert [type(item) for item in items] == [Rejected]
    assert grown < 60 << 10  # KiB


def test_a_zstd_window_beyond_memory_is_refused(read: Read) -> None:
    frame = b"\x28\xb5\x2f\xfd" + bytes([0x00, 0xF8]) + b"\x01\x00\x00"  # a window of 2^41 bytes
    [rejected] = read(frame, "a.jsonl.zst")
    assert rejected.reason == "the zstd file is damaged"


def test_a_record_that_is_json_in_json_stays_a_string(read: Read) -> None:
    assert read(gzip.compress(as_lines([json.dumps(TWO)])), "a.jsonl.gz") == [(0, json.dumps(TWO))]
