"""Mutated chunk files of every kind: loading never raises, every record counts, and what is loaded can be exported."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultimate_embedder.chunks import LoadedChunks, load_chunks
from ultimate_embedder.chunks.discover import is_chunk_file
from ultimate_embedder.events import ChunkRejected, Event
from ultimate_embedder.export import jsonl, npy, parquet, qdrant
from ultimate_embedder.export.points import Points
from ultimate_embedder.types import UNNAMED, Collection, VectorSpec

LONG = os.environ.get("FUZZ_PROFILE") == "long"
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be")
DIM = 4

words = st.text(max_size=12) | st.sampled_from(
    ["", "\0", "\ud800", "\ufeff", "\x1b[2J", "a\nb", "<pad>", "😀", "9" * 30]
)
numbers = (
    st.integers()
    | st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**400])
    | st.floats()
    | st.sampled_from([5e-324, -0.0, 1.7e308])
)
values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
records = (
    st.fixed_dictionaries(
        {"text": words}, optional={"id": values, "metadata": values, "chunk_id": values, "text ": values, "": values}
    )
    | words
    | values
)
mutations = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "delete", "insert", "repeat"]), st.floats(0, 1), st.binary(max_size=6)),
    max_size=4,
)


class DummyVectors:
    """A vector for every text, of its key."""

    vectors = (VectorSpec(UNNAMED, DIM),)
    identity = "dummy"
    identities: tuple[Any, ...] = ()
    fingerprints: tuple[str, ...] = ()
    fusion = "none"
    sparse: tuple[Any, ...] = ()
    is_fused = False

    def holds(self, keys: np.ndarray) -> np.ndarray:
        return np.ones(len(keys), bool)

    def read(self, keys: np.ndarray) -> dict[str, np.ndarray]:
        return {UNNAMED: np.tile((keys[:, :1] % 97 + 1).astype(np.float32), (1, DIM))}

    def read_sparse(self, keys: np.ndarray) -> dict[str, Any]:
        return {}


def load(name: str, content: bytes, folder: Path) -> LoadedChunks:
    """Load one file; all that must hold for any content."""
    path = folder / name
    path.write_bytes(content)
    seen: list[Event] = []
    loaded = load_chunks(Collection("c", folder, (path,)), folder / "spool", seen.append)
    rejected = [event.rejected for event in seen if isinstance(event, ChunkRejected)]
    assert loaded.found == len(loaded.table) + loaded.rejected
    assert loaded.rejected == len(rejected)
    for each in rejected:
        assert each.file == name
        assert each.reason.encode()
        assert not set(each.reason) & set(map(chr, [*range(32), *range(127, 160)]))
    blocks = list(loaded.table.blocks())
    ids = [chunk_id for block in blocks for chunk_id in block.ids]
    assert len(ids) == len(set(ids)) == len(loaded.table)
    return loaded


def export(loaded: LoadedChunks, folder: Path, *writers: Callable[[Points, Path], None]) -> None:
    vectors: Any = DummyVectors()
    points = Points("c", "c", loaded.table, vectors)
    for number, write in enumerate(writers):
        write(points, folder / f"export-{number}")


def check_exports(loaded: LoadedChunks, folder: Path) -> None:
    """Every export has every chunk, with the record as it was loaded."""
    export(loaded, folder, npy.write, parquet.write, jsonl.write)
    expected = [json.loads(record) for block in loaded.table.blocks() for record in block.records]
    assert len(np.load(folder / "export-0")) == len(expected)
    columns = pq.read_table(folder / "export-1").to_pydict()
    lines = (folder / "export-2").read_bytes().split(b"\n")[:-1]
    payloads = [json.loads(line)["payload"] for line in lines]
    for row, record in enumerate(expected):
        held = json.loads(columns["extra"][row])
        if columns["metadata"][row] is not None:
            held["metadata"] = json.loads(columns["metadata"][row])
        assert held == record
        assert payloads[row]["text"] == columns["text"][row]
        assert {key: payloads[row][key] for key in record} == record


def mutate(content: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    for kind, where, data in changes:
        at = int(where * len(content))
        rest = {
            "flip": bytes(byte ^ 0x41 for byte in content[at : at + 1]) + content[at + 1 :],
            "cut": b"",
            "delete": content[at + len(data) + 1 :],
            "insert": data + content[at:],
            "repeat": content[max(0, at - 9) :],
        }[kind]
        content = content[:at] + rest
    return content


def as_json(chunks: list[Any], shape: str, encoding: str) -> bytes:
    if shape == "lines":
        text = "\n".join(json.dumps(chunk, ensure_ascii=False) for chunk in chunks)
    else:
        value = chunks if shape == "list" else {"source": "x", "chunks": chunks}
        text = json.dumps(value, ensure_ascii=False, indent=1 if len(chunks) % 2 else None)
    return text.encode(encoding, "surrogatepass")


@given(
    st.lists(records, max_size=6), st.sampled_from(["list", "object", "lines"]), st.sampled_from(ENCODINGS), mutations
)
def test_any_json_file_is_loaded_or_rejected(
    chunks: list[Any], shape: str, encoding: str, changes: list[tuple[str, float, bytes]]
) -> None:
    content = mutate(as_json(chunks, shape, encoding), changes)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a_chunks.json", "a.jsonl"):
            loaded = load(name, content, Path(folder))
            if name == "a_chunks.json" and not changes and shape == "list":
                assert loaded.found == len(chunks)
        check_exports(loaded, Path(folder))


def columns_of(chunks: list[Any]) -> dict[str, pa.Array]:
    texts = [chunk["text"] if isinstance(chunk, dict) and "text" in chunk else "text" for chunk in chunks]
    texts = [text.encode(errors="replace").decode() if isinstance(text, str) else None for text in texts]
    count = range(len(chunks))
    return {
        "text": pa.array(texts, pa.string()),
        "tags": pa.array([[f"tag {n}"] * n for n in count], pa.list_(pa.string())),
        "deep": pa.array([{"a": [n], "b": {"c": None}} for n in count], pa.struct([("a", pa.list_(pa.int8()))])),
        "raw": pa.array([bytes([n, 255]) for n in count], pa.binary()),
        "n": pa.array([float("nan")] * len(chunks), pa.float16()),
    }


@given(
    st.lists(records, max_size=20),
    st.sampled_from(["zstd", "snappy", "none"]),
    st.sampled_from(["1.0", "2.0"]),
    mutations,
)
def test_any_parquet_file_is_loaded_or_rejected(
    chunks: list[Any], compression: str, pages: str, changes: list[tuple[str, float, bytes]]
) -> None:
    file = io.BytesIO()
    options: dict[str, Any] = {"compression": compression, "data_page_version": pages, "row_group_size": 7}
    pq.write_table(pa.table(columns_of(chunks)), file, **options)
    with tempfile.TemporaryDirectory() as folder:
        loaded = load("a.parquet", mutate(file.getvalue(), changes), Path(folder))
        if not changes:
            assert loaded.found == len(chunks)
        check_exports(loaded, Path(folder))


@given(st.lists(records, max_size=6), st.sampled_from(["gz", "zst"]), mutations, mutations)
def test_any_compressed_file_is_loaded_or_rejected(
    chunks: list[Any],
    kind: str,
    inside: list[tuple[str, float, bytes]],
    outside: list[tuple[str, float, bytes]],
) -> None:
    content = mutate(as_json(chunks, "lines", "utf-8"), inside)
    packed = gzip.compress(content) if kind == "gz" else pa.Codec("zstd").compress(content, asbytes=True)
    with tempfile.TemporaryDirectory() as folder:
        load(f"a.jsonl.{kind}", mutate(packed, outside), Path(folder))


@given(
    st.lists(st.tuples(words, words), max_size=8),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(ENCODINGS),
    mutations,
)
def test_any_csv_file_is_loaded_or_rejected(
    rows: list[tuple[str, str]], delimiter: str, encoding: str, changes: list[tuple[str, float, bytes]]
) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows([("id", "text"), *rows])
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.csv", "a.tsv"):
            content = mutate(file.getvalue().encode(encoding, "surrogatepass"), changes)
            check_exports(load(name, content, Path(folder)), Path(folder))


def as_arrow(chunks: list[Any], kind: str, compression: str | None) -> bytes:
    file = io.BytesIO()
    columns = {**columns_of(chunks), "kind": pa.array(["x", "y"] * len(chunks)).dictionary_encode()[: len(chunks)]}
    table = pa.table(columns)
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=7)
    return file.getvalue()


@given(
    st.lists(records, max_size=20),
    st.sampled_from(["file", "stream"]),
    st.sampled_from(["zstd", "lz4", None]),
    mutations,
)
def test_any_arrow_file_is_loaded_or_rejected(
    chunks: list[Any], kind: str, compression: str | None, changes: list[tuple[str, float, bytes]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        loaded = load("a.arrow", mutate(as_arrow(chunks, kind, compression), changes), Path(folder))
        if not changes and chunks:
            assert loaded.found == len(chunks)
        check_exports(loaded, Path(folder))


@given(st.binary(max_size=200), st.sampled_from(["a.json", "a.csv", "a.arrow", "a.jsonl.gz", "a.jsonl.zst", "stdin"]))
def test_any_bytes_under_any_name_are_loaded_or_rejected(content: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        load(name, content, Path(folder))
        is_chunk_file(Path(folder) / name)


@settings(max_examples=200 if LONG else 4)
@given(st.lists(records, min_size=1, max_size=12))
def test_what_is_loaded_can_be_put_into_qdrant(chunks: list[Any]) -> None:
    from qdrant_edge import EdgeShard

    with tempfile.TemporaryDirectory() as folder:
        loaded = load("a_chunks.json", as_json(chunks, "list", "utf-8"), Path(folder))
        export(loaded, Path(folder), qdrant.write)
        shard = EdgeShard.load(str(Path(folder) / "export-0"))
        try:
            for block in Points("c", "c", loaded.table, DummyVectors()).blocks():  # type: ignore[arg-type]
                found = {str(point.id): point.payload for point in shard.retrieve([*block.point_ids], True, False)}
                assert found == {block.point_ids[row]: block.payload(row) for row in range(len(block))}
        finally:
            shard.close()


SAMPLE: list[Any] = [
    {"text": "naïve 日本 😀", "metadata": {"id": 7, "n": [1.5e3, -2, None, True]}},
    "two",
    {"text": 'thr\u00e9e \\ "quoted"', "nested": {"a": {"b": ["", "]"]}}},
]


def small_files() -> Iterator[tuple[str, bytes]]:
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32-be"):
        for shape, name in (("list", "a_chunks.json"), ("object", "a_chunks.json"), ("lines", "a.jsonl")):
            yield name, as_json(SAMPLE, shape, encoding)
    file = io.BytesIO()
    pq.write_table(pa.table(columns_of(SAMPLE)), file, row_group_size=2)
    yield "a.parquet", file.getvalue()
    for compression in (None, "zstd"):
        for kind in ("file", "stream"):
            yield "a.arrow", as_arrow(SAMPLE, kind, compression)
    yield "a.jsonl.gz", gzip.compress(as_json(SAMPLE, "lines", "utf-8"))
    yield "a.jsonl.zst", pa.Codec("zstd").compress(as_json(SAMPLE, "lines", "utf-8"), asbytes=True)
    yield "a.csv", 'id,text\r\n007,"a ""b"",\r\nc"\r\n8,日本\r\n'.encode()


def swept(content: bytes) -> Iterator[bytes]:
    """Every truncation and every byte flipped in several ways; a tenth of them in the short profile."""
    rng = random.Random(7)
    for at in range(len(content)):
        if LONG or rng.random() < 20 / len(content):
            yield content[:at]
        for bits in (0x01, 0x20, 0x80, 0xFF):
            if LONG or rng.random() < 5 / len(content):
                yield content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]


@pytest.mark.parametrize(("name", "content"), small_files(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_truncation_and_every_flipped_byte_is_survived(name: str, content: bytes, tmp_path: Path) -> None:
    for changed in swept(content):
        load(name, changed, tmp_path)
