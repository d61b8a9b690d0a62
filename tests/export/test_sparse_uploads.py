"""Points with sparse vectors on a Qdrant server, over HTTP and gRPC, and in a shard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from tests.support.points import make_points
from tests.support.qdrant.over_grpc import GrpcServer
from tests.support.qdrant_server import QdrantServer
from tests.support.uploads import upload
from ultimate_embedder.errors import UploadError
from ultimate_embedder.export import PointsFile, write_exports
from ultimate_embedder.export.shard_record import find_changes, read_record
from ultimate_embedder.models import WordCounter
from ultimate_embedder.types import Bm25Settings

TEXTS = [f"Chunk {number} of mice, clocks and {'more ' * (number % 5)}houses" for number in range(30)] + ["the"]


def export(root: Path, texts: list[str], *, bm25: bool = True, kinds: tuple[str, ...] = ("parquet",)) -> Path:
    points = make_points(root, [{"text": text} for text in texts], words=Bm25Settings() if bm25 else None)
    folder = root / "out" / "docs"
    folder.mkdir(parents=True, exist_ok=True)
    write_exports(points, folder, kinds, lambda event: None)
    return folder


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with QdrantServer() as started:
        yield started


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return export(tmp_path, TEXTS)


def vectors_on(server: QdrantServer, name: str) -> dict[str, Any]:
    return {record.payload["text"]: record.vector for record in server.collections[name].points.values()}


def test_sparse_vectors_arrive_and_are_searched_by_words(docs: Path, server: QdrantServer) -> None:
    with GrpcServer(server.service) as grpc:
        upload(docs, server.url, collection="http")
        upload(docs, server.url, collection="grpc", grpc_port=grpc.port)
    params = server.collections["http"].describe()["config"]["params"]
    assert params["sparse_vectors"] == {"bm25": {"modifier": "idf"}}
    assert params["vectors"] == {"size": 64, "distance": "Cosine"}
    words = PointsFile.open(docs / "chunks.parquet").read_sparse("bm25", 100)
    for name in ("http", "grpc"):
        found = vectors_on(server, name)
        for row, text in enumerate(TEXTS):
            assert found[text]["bm25"].indices == words[row][0].tolist()
            assert np.allclose(found[text]["bm25"].values, words[row][1])
            assert len(found[text][""]) == 64
    asked = WordCounter(Bm25Settings()).query("the house of chunk 7")
    query = models.SparseVector(indices=asked.indices.tolist(), values=asked.values.tolist())
    for name in ("http", "grpc"):
        hits = QdrantClient(server.url).query_points(name, query=query, using="bm25", limit=3).points
        assert hits[0].payload is not None
        assert hits[0].payload["text"] == TEXTS[7]


def test_an_index_of_words_can_be_on_disk_too(docs: Path, server: QdrantServer) -> None:
    upload(docs, server.url, collection="c", on_disk=True)
    params = server.collections["c"].describe()["config"]["params"]
    assert params["sparse_vectors"]["bm25"] == {"modifier": "idf", "index": {"on_disk": True}}


def test_a_collection_without_these_sparse_vectors_is_left_alone(
    tmp_path: Path, docs: Path, server: QdrantServer
) -> None:
    upload(export(tmp_path / "dense", TEXTS, bm25=False), server.url, collection="c")
    with pytest.raises(UploadError, match=r"has no sparse vectors named bm25, which ours have.* --recreate"):
        upload(docs, server.url, collection="c")
    QdrantClient(server.url).create_collection(
        "plain",
        vectors_config=models.VectorParams(size=64, distance=models.Distance.COSINE),
        sparse_vectors_config={"bm25": models.SparseVectorParams()},
    )
    with pytest.raises(UploadError, match="named bm25 with the modifier None, but ours need the modifier idf"):
        upload(docs, server.url, collection="plain")


def test_the_mean_length_on_the_server_follows_that_of_the_chunks(tmp_path: Path, server: QdrantServer) -> None:
    docs = export(tmp_path, TEXTS)
    upload(docs, server.url, collection="c")
    noted = server.collections["c"].metadata["ultimate_embedder"]
    assert noted["sparse"][0]["avg_len"] == PointsFile.open(docs / "chunks.parquet").sparse[0].avg_len
    (same,) = upload(docs, server.url, collection="c", dry_run=True)
    assert (same.new, same.changed) == (0, 0)
    export(tmp_path, [*TEXTS, "many words " * 100])
    (now,) = upload(docs, server.url, collection="c", dry_run=True)
    assert (now.new, now.changed) == (1, 31)  # no text was changed, but what all words weigh
    upload(docs, server.url, collection="c")
    after = server.collections["c"].metadata["ultimate_embedder"]
    assert after["fingerprint"] == noted["fingerprint"]
    assert after["sparse"][0]["avg_len"] > noted["sparse"][0]["avg_len"]
    words = PointsFile.open(docs / "chunks.parquet").read_sparse("bm25", 100)
    assert np.allclose(vectors_on(server, "c")[TEXTS[0]]["bm25"].values, words[0][1])


def test_a_shard_with_sparse_vectors_is_compared_point_by_point(tmp_path: Path) -> None:
    from qdrant_edge import EdgeShard, PointVectors, SparseVector, UpdateOperation

    folder = export(tmp_path, TEXTS, kinds=("parquet", "qdrant")) / "qdrant"
    written = read_record(folder)
    assert written is not None
    assert written.names == ("", "bm25")
    assert str(find_changes(folder, written)) == ""
    shard = EdgeShard.load(str(folder))
    first = next(PointsFile.open(folder.parent / "chunks.parquet").ids(5))[0]
    changed = PointVectors(id=first, vector={"bm25": SparseVector([7], [1.0])})
    shard.update(UpdateOperation.update_vectors([changed]))
    shard.close()
    assert str(find_changes(folder, written)) == "1 point with another vector"


def test_a_points_file_whose_sparse_vectors_are_not_described_is_damaged(docs: Path) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(docs / "chunks.parquet")
    described = json.loads(table.schema.metadata[b"sparse_vectors"])
    for wrong in ([], [{**described[0], "name": "../x"}], [{**described[0], "avg_len": -1}], {"a": 1}, [1]):
        metadata = {**table.schema.metadata, b"sparse_vectors": json.dumps(wrong).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), docs / "chunks.parquet")
        with pytest.raises(UploadError, match="cannot be read"):
            PointsFile.open(docs / "chunks.parquet")
