"""The four exports of a real run: each right in itself, and all of them the same points."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from qdrant_edge import CountRequest, EdgeShard, Query, Record, SearchRequest

from tests.conftest import WriteChunks
from tests.support.points import make_points
from tests.support.tiny_models import tiny_model
from ultimate_embedder import RunSummary, embed, events
from ultimate_embedder.devices import cpu
from ultimate_embedder.errors import OutputError
from ultimate_embedder.export import (
    EXPORT_KINDS,
    Points,
    PointsFile,
    find_export,
    point_id,
    target_collection_name,
    write_exports,
)
from ultimate_embedder.export.points import PointBlock
from ultimate_embedder.files import file_sha256, folder_sha256
from ultimate_embedder.models import Encoder, TokenBatch
from ultimate_embedder.types import VectorSpec

DIM = 64
PASSING = find_export("qdrant").passing_files
NO_VECTOR = "the model gave no usable vector for this text (not finite, or of no length)"


def nested(levels: int) -> Any:
    value: Any = "the bottom"
    for level in range(levels):
        value = {"down": value} if level % 2 else [value]
    return value


PLAIN = [
    {
        "text": f"Chunk {number}: " + " ".join(f"w{number * 7 + word}" for word in range(number % 40)),
        "metadata": {"chunk_id": f"chunk-{number}", "page": number, "tags": ["a", None]},
        "source": f"page {number}",
    }
    for number in range(250)
]
TWINS = [{"text": "The same words.", "metadata": {"chunk_id": name}} for name in ("twin-a", "twin-b")]
ODD: list[dict[str, Any]] = [
    {"text": "A text with a \0 in it and 🙂 at the end 🏁", "id": "nul", "note": "a\0b", "\0": "\0"},
    {"text": "Emoji: 👩‍👩‍👧‍👦", "id": "emoji", "metadata": {"👩‍👩‍👧‍👦": "🇫🇷", "combined": "e\u0301 \u200f \ufeff"}},
    {"text": "An empty key", "id": "empty key", "": {"": ""}, "metadata": {"": [{}, [], None]}},
    {"text": "Large numbers", "id": "numbers", "most": 2**63 - 1, "least": -(2**63), "unsigned": 2**64 - 1},
    {"text": "Small numbers", "id": "floats", "metadata": {"third": 1 / 3, "tiny": 5e-324, "huge": 1.7e308}},
    {"text": "Deep down", "id": "deep", "metadata": nested(50)},
    {"text": "Metadata of another kind", "id": "list", "metadata": ["not", "an", "object"]},
    {"text": "No metadata", "id": "null", "metadata": None},
    {"text": " \n blanks around it \t ", "id": " blanks "},
]
RECORDS: list[dict[str, Any]] = [*PLAIN, *TWINS, *ODD]


def id_of(record: dict[str, Any]) -> str:
    return str(record["id"] if "id" in record else record["metadata"]["chunk_id"])


def payload_of(record: dict[str, Any], collection: str = "docs") -> dict[str, Any]:
    return {"chunk_id": id_of(record), "collection": collection, "file": "a_chunks.json", **record}


def run(chunks: Path, output: Path, **options: Any) -> RunSummary:
    return embed(
        chunks, output, **{"models": [str(tiny_model("bert"))], "exports": EXPORT_KINDS, "quiet": True, **options}
    )


@dataclass(frozen=True)
class Exports:
    """Everything that one run wrote, read back with the readers that other programs use."""

    folder: Path
    summary: RunSummary
    npy: np.ndarray
    parquet: pa.Table
    lines: list[dict[str, Any]]
    shard: EdgeShard


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exports]:
    root = tmp_path_factory.mktemp("exports")
    (root / "chunks" / "docs").mkdir(parents=True)
    (root / "chunks" / "docs" / "a_chunks.json").write_text(json.dumps(RECORDS), encoding="utf-8")
    summary = run(root / "chunks", root / "out")
    folder = root / "out" / "docs"
    shard = EdgeShard.load(str(folder / "qdrant"))
    yield Exports(
        folder=folder,
        summary=summary,
        npy=np.load(folder / "embeddings.npy"),
        parquet=pq.read_table(folder / "chunks.parquet"),
        lines=[json.loads(line) for line in (folder / "points.jsonl").read_text("utf-8").split("\n")[:-1]],
        shard=shard,
    )
    shard.close()


# each by itself


def test_row_i_of_the_npy_is_chunk_i(exports: Exports) -> None:
    assert exports.npy.dtype == np.float32
    assert exports.npy.shape == (len(RECORDS), DIM)
    model = tiny_encoder()
    for row in (0, 1, 39, 249, len(RECORDS) - 1):
        vector = model.encode([RECORDS[row]["text"]])[0]
        np.testing.assert_allclose(exports.npy[row], vector, atol=1e-5)


def test_the_parquet_has_vectors_of_one_length_and_describes_itself(exports: Exports) -> None:
    schema = exports.parquet.schema
    assert schema.field("vector").type == pa.list_(pa.float32(), DIM)
    assert schema.names == ["chunk_id", "point_id", "file", "position", "text", "metadata", "extra", "vector"]
    described = PointsFile.open(exports.folder / "chunks.parquet")
    assert (described.collection, described.target, described.points, described.vectors) == (
        "docs",
        "docs__tiny-bert",
        len(RECORDS),
        (VectorSpec("", DIM),),
    )


def test_the_parquet_has_text_and_metadata_unchanged(exports: Exports) -> None:
    columns = exports.parquet.to_pydict()
    assert columns["text"] == [record["text"] for record in RECORDS]
    assert columns["position"] == list(range(len(RECORDS)))
    assert set(columns["file"]) == {"a_chunks.json"}
    for record, metadata, extra in zip(RECORDS, columns["metadata"], columns["extra"], strict=True):
        rest = {key: value for key, value in record.items() if key not in ("text", "metadata")}
        assert json.loads(extra) == rest
        assert (metadata is None) == ("metadata" not in record)
        assert metadata is None or json.loads(metadata) == record["metadata"]


def test_the_jsonl_gives_the_same_float32_back(exports: Exports) -> None:
    assert {tuple(line) for line in exports.lines} == {("id", "vector", "payload")}
    read = np.array([line["vector"] for line in exports.lines], np.float32)
    assert np.array_equal(read, exports.npy)


def test_the_shard_counts_every_chunk_and_finds_each_by_its_own_vector(exports: Exports) -> None:
    assert exports.shard.count(CountRequest(exact=True)) == len(RECORDS)
    for record, vector in zip(RECORDS, exports.npy, strict=True):
        limit = 2 if record in TWINS else 1
        found = exports.shard.search(
            SearchRequest(query=Query.Nearest(vector.tolist()), limit=limit, with_payload=True)
        )
        assert id_of(record) in [hit.payload["chunk_id"] for hit in found if hit.payload]
        assert found[0].score == pytest.approx(1, abs=1e-5)


def test_nothing_temporary_is_left(exports: Exports) -> None:
    names = {path.name for path in exports.folder.iterdir()}
    assert names == {"store", "embeddings.npy", "chunks.parquet", "points.jsonl", "qdrant"}


# all together


def test_all_four_agree_in_ids_order_and_vectors(exports: Exports) -> None:
    ids = [point_id("docs", id_of(record)) for record in RECORDS]
    assert exports.parquet["point_id"].to_pylist() == ids
    assert exports.parquet["chunk_id"].to_pylist() == [id_of(record) for record in RECORDS]
    assert [line["id"] for line in exports.lines] == ids
    assert np.array_equal(np.array(exports.parquet["vector"].to_pylist(), np.float32), exports.npy)
    shard_vectors = np.array([record.vector for record in retrieve(exports.shard, ids)], np.float32)
    np.testing.assert_allclose(shard_vectors, exports.npy, atol=1e-6)  # the engine normalises once more


@pytest.mark.parametrize("record", ODD, ids=id_of)
def test_odd_payloads_survive_in_all(exports: Exports, record: dict[str, Any]) -> None:
    row = RECORDS.index(record)
    assert exports.lines[row]["payload"] == payload_of(record)
    (stored,) = retrieve(exports.shard, [point_id("docs", id_of(record))])
    assert stored.payload == payload_of(record)
    batches = PointsFile.open(exports.folder / "chunks.parquet").batches(len(RECORDS))
    (payloads,) = [payloads for _, _, payloads in batches]
    assert payloads[row] == payload_of(record)


def test_every_payload_in_the_shard_is_complete(exports: Exports) -> None:
    ids = [point_id("docs", id_of(record)) for record in RECORDS]
    payloads = [record.payload for record in retrieve(exports.shard, ids)]
    assert payloads == [payload_of(record) for record in RECORDS]


def test_equal_texts_with_different_ids_are_separate_points(exports: Exports) -> None:
    ids = [point_id("docs", name) for name in ("twin-a", "twin-b")]
    assert len(set(ids)) == 2
    assert [str(record.id) for record in retrieve(exports.shard, ids)] == ids
    (collection,) = exports.summary.collections
    assert collection.chunks.embedded == len(RECORDS)
    assert collection.chunks.distinct_texts == len(RECORDS) - 1


def test_the_summary_knows_size_rows_and_checksum_of_every_export(exports: Exports) -> None:
    (collection,) = exports.summary.collections
    assert [export.kind for export in collection.exports] == list(EXPORT_KINDS)
    for export in collection.exports:
        assert export.rows == len(RECORDS)
        assert export.size_bytes > 0
        if export.kind != "qdrant":  # opened by this module's fixture, which may touch its files
            assert export.sha256 == file_sha256(Path(export.path))


def test_a_run_without_changes_exports_the_same_bytes(write_chunks: WriteChunks, tmp_path: Path) -> None:
    chunks, kinds = write_chunks(RECORDS), ["npy", "parquet", "jsonl"]
    (first,) = run(chunks, tmp_path / "out", exports=kinds).collections
    (second,) = run(chunks, tmp_path / "out", exports=kinds).collections
    assert [export.sha256 for export in first.exports] == [export.sha256 for export in second.exports]


def test_only_the_exports_that_were_asked_for_are_written(write_chunks: WriteChunks, tmp_path: Path) -> None:
    run(write_chunks(PLAIN[:3]), tmp_path / "out", exports=["jsonl"])
    written = {path.name for path in (tmp_path / "out" / "docs").iterdir()}
    assert written == {"store", "points.jsonl"}


# failures


@pytest.mark.parametrize("kind", EXPORT_KINDS)
def test_a_failing_export_leaves_the_old_one_untouched(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (before,) = run(write_chunks(PLAIN[:20]), tmp_path / "out", exports=[kind]).collections
    whole = Points.blocks

    def blocks(self: Points) -> Iterator[PointBlock]:
        yield from whole(self)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Points, "blocks", blocks)
    (after,) = run(write_chunks(PLAIN[:30]), tmp_path / "out", exports=[kind]).collections
    assert (after.status, after.exports) == ("failed", [])
    assert "No space left on device" in (after.error or "")
    path = Path(before.exports[0].path)
    folder_or_file = folder_sha256(path, PASSING, end_zeros=False) if path.is_dir() else file_sha256(path)
    assert before.exports[0].sha256 == folder_or_file
    assert {entry.name for entry in path.parent.iterdir()} == {"store", path.name}


def test_a_folder_in_the_place_of_an_export_is_an_error_in_words_and_the_others_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    (folder / "embeddings.npy" / "mine").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"embeddings\.npy is a folder where a file belongs"):
        write_exports(make_points(tmp_path, PLAIN[:3]), folder, ("npy", "parquet"), lambda event: None)
    assert (folder / "embeddings.npy" / "mine").is_dir()
    assert PointsFile.open(folder / "chunks.parquet").points == 3


@pytest.mark.parametrize("kind", ["npy", "parquet", "jsonl", "qdrant"])
def test_how_many_points_are_written_is_told_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    seen: list[events.Event] = []
    monkeypatch.setattr(events.Interval, "is_over", lambda self: True)
    points = make_points(tmp_path, PLAIN[:3])
    write_exports(points, tmp_path / "docs", (kind,), seen.append)
    (told,) = [event for event in seen if isinstance(event, events.PointsExported)]
    assert (told.collection, told.kind, told.points, told.total) == (points.collection, kind, 3, 3)


def test_a_chunk_whose_vector_is_not_a_number_is_rejected_and_not_exported(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = max(range(20, 40), key=lambda number: len(PLAIN[number]["text"]))
    poison_first_rows(monkeypatch, 1)  # the first row of the first batch is the longest text
    (collection,) = run(write_chunks(PLAIN[20:40]), tmp_path / "out").collections
    (rejected,) = collection.rejected
    assert (rejected.file, rejected.position, rejected.reason) == ("a_chunks.json", longest - 20, NO_VECTOR)
    counts = collection.chunks
    assert (counts.found, counts.embedded, counts.rejected) == (20, 19, 1)
    assert {export.rows for export in collection.exports} == {19}
    table = pq.read_table(tmp_path / "out" / "docs" / "chunks.parquet", columns=["chunk_id"])
    assert id_of(PLAIN[longest]) not in table["chunk_id"].to_pylist()
    assert np.isfinite(np.load(tmp_path / "out" / "docs" / "embeddings.npy")).all()


def test_the_next_run_tries_a_rejected_text_again(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = write_chunks(PLAIN[20:40])
    with monkeypatch.context() as patch:
        poison_first_rows(patch, 1)
        run(chunks, tmp_path / "out")
    (collection,) = run(chunks, tmp_path / "out").collections
    counts = collection.chunks
    assert (counts.embedded, counts.rejected, counts.newly_encoded) == (20, 0, 1)


def test_a_collection_without_any_vector_fails_like_one_without_any_chunk(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison_first_rows(monkeypatch, 1000)
    summary = run(write_chunks(PLAIN[:5]), tmp_path / "out")
    (collection,) = summary.collections
    assert (collection.chunks.embedded, collection.chunks.rejected) == (0, 5)
    assert (collection.status, summary.ok) == ("failed", False)


# names


def test_the_target_name_is_readable_for_odd_names() -> None:
    assert target_collection_name("docs", "bge-m3") == "docs__bge-m3"
    assert target_collection_name("docs", "bge-m3", 256) == "docs__bge-m3__256d"
    assert target_collection_name("My notes / 2024 (old)", "org/model v1.5") == "My_notes_2024_old__org_model_v1.5"
    assert target_collection_name("Übersicht_表", "m") == "Übersicht_表__m"


def test_the_target_name_differs_for_different_dims_and_models() -> None:
    names = {target_collection_name("docs", model, dim) for model in ("a", "b") for dim in (None, 64, 128)}
    assert len(names) == 6


def test_the_target_name_of_a_long_name_fits_and_still_says_which_dims() -> None:
    names = {target_collection_name("x" * 250, "all-minilm-l6-v2", dim) for dim in (None, 64, 128)}
    assert len(names) == 3
    assert all(len(name) <= 255 for name in names)


def retrieve(shard: EdgeShard, ids: list[str]) -> list[Record]:
    """The points with these ids, in their order."""
    found = {str(record.id): record for record in shard.retrieve(list(ids), with_payload=True, with_vector=True)}
    return [found[identifier] for identifier in ids]


def tiny_encoder() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(tiny_model("bert")), device="cpu")


def poison_first_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let the model give NaN for the first `rows` rows that it sees."""
    forward = Encoder.forward
    left = rows

    def poisoned(self: Encoder, batch: TokenBatch) -> torch.Tensor:
        nonlocal left
        vectors = forward(self, batch).clone()
        vectors[:left] = float("nan")
        left = max(0, left - len(vectors))
        return vectors

    monkeypatch.setattr(Encoder, "forward", poisoned)
    monkeypatch.setattr(Encoder, "can_pack", lambda self, device: False)  # which would be tried on rows of its own
    monkeypatch.setattr(cpu, "MOST_WORKERS", 1)  # so that the longest row is seen first


def test_the_docling_sample_is_40_points_each_nearest_to_itself(docling_sample: Path, tmp_path: Path) -> None:
    from qdrant_edge import QueryRequest

    (done,) = embed(docling_sample, tmp_path / "out", devices="cpu", quiet=True).collections
    assert (done.chunks.found, done.chunks.embedded, done.chunks.rejected) == (40, 40, 0)
    vectors = np.load(tmp_path / "out" / "Docling" / "embeddings.npy")
    ids = pq.read_table(tmp_path / "out" / "Docling" / "chunks.parquet").column("point_id").to_pylist()
    shard = EdgeShard.load(str(tmp_path / "out" / "Docling" / "qdrant"))
    assert shard.count(CountRequest(exact=True)) == 40
    for point, vector in zip(ids, vectors, strict=True):
        (nearest,) = shard.query(QueryRequest(query=Query.Nearest(vector.tolist()), limit=1))
        assert str(nearest.id) == point
    shard.close()


def test_large_records_are_read_back_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ultimate_embedder.chunks import table

    monkeypatch.setattr(table, "BLOCK_CHARACTERS", 10_000)
    (tmp_path / "chunks").mkdir()
    records = [{"text": f"text {n}", "page": "x" * 3000} for n in range(10)]
    (tmp_path / "chunks" / "a_chunks.json").write_text(json.dumps(records))
    run(tmp_path / "chunks", tmp_path / "out", exports=["parquet"])
    [file] = (tmp_path / "out").rglob("chunks.parquet")
    batches = list(PointsFile.open(file).batches(128))
    assert [len(ids) for ids, _, _ in batches] == [4, 4, 2]
    assert [payload["text"] for _, _, payloads in batches for payload in payloads] == [f"text {n}" for n in range(10)]
