"""The server of the tests, asked by the real client: what is stored, filtered and searched is the engine's work."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from tests.support.qdrant_server import QdrantServer

NAME = "docs"
DIM = 8
IDS = [str(uuid.UUID(int=number + 1)) for number in range(20)]
VECTORS = np.random.default_rng(0).standard_normal((20, DIM)).astype("f4")
COSINE = models.VectorParams(size=DIM, distance=models.Distance.COSINE)


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with QdrantServer() as running:
        yield running


@pytest.fixture
def client(server: QdrantServer) -> Iterator[QdrantClient]:
    connected = QdrantClient(url=server.url, check_compatibility=False)
    yield connected
    connected.close()


def fill(client: QdrantClient, **options: Any) -> None:
    client.create_collection(NAME, vectors_config=COSINE, **options)
    payloads = [{"n": number, "kind": "even" if number % 2 == 0 else "odd"} for number in range(20)]
    client.upsert(NAME, models.Batch(ids=list(IDS), vectors=VECTORS.tolist(), payloads=payloads), wait=True)


def kind_is(kind: str) -> models.Filter:
    return models.Filter(must=[models.FieldCondition(key="kind", match=models.MatchValue(value=kind))])


def number_from(start: int) -> models.Filter:
    return models.Filter(must=[models.FieldCondition(key="n", range=models.Range(gte=start))])


def test_the_nearest_points_are_those_with_the_highest_cosine(client: QdrantClient) -> None:
    fill(client)
    wanted = np.random.default_rng(1).standard_normal(DIM)
    cosines = VECTORS @ wanted / np.linalg.norm(VECTORS, axis=1) / np.linalg.norm(wanted)
    hits = client.query_points(NAME, query=wanted.tolist(), limit=20, with_vectors=True).points
    assert [hit.id for hit in hits] == [IDS[row] for row in np.argsort(-cosines)]
    assert np.allclose([hit.score for hit in hits], np.sort(cosines)[::-1], atol=1e-6)
    assert [hit.payload and hit.payload["n"] for hit in hits] == np.argsort(-cosines).tolist()
    some = client.query_points(NAME, query=wanted.tolist(), query_filter=kind_is("odd"), score_threshold=0.0).points
    assert [hit.id for hit in some] == [IDS[row] for row in np.argsort(-cosines) if row % 2 and cosines[row] >= 0][:10]


def test_several_queries_are_answered_in_their_order(client: QdrantClient) -> None:
    fill(client)
    requests = [models.QueryRequest(query=VECTORS[row].tolist(), limit=1) for row in (3, 7)]
    assert [answer.points[0].id for answer in client.query_batch_points(NAME, requests)] == [IDS[3], IDS[7]]


def test_points_are_retrieved_counted_and_scrolled_in_pages(client: QdrantClient) -> None:
    fill(client)
    (point,) = client.retrieve(NAME, [IDS[3]], with_vectors=True)
    assert point.payload == {"n": 3, "kind": "odd"}
    assert np.allclose(np.array(point.vector), VECTORS[3] / np.linalg.norm(VECTORS[3]), atol=1e-6)
    assert client.count(NAME, count_filter=kind_is("odd")).count == 10
    seen, offset = [], None
    while True:
        page, offset = client.scroll(NAME, number_from(5), limit=4, offset=offset)
        seen += [record.id for record in page]
        if offset is None:
            break
    assert seen == IDS[5:]


def test_points_are_deleted_by_id_and_by_filter(client: QdrantClient, server: QdrantServer) -> None:
    fill(client)
    client.delete(NAME, [IDS[0]])
    client.delete(NAME, models.FilterSelector(filter=kind_is("odd")))
    assert list(server.collections[NAME].points) == IDS[2::2]


def test_payloads_are_set_replaced_and_cleared(client: QdrantClient, server: QdrantServer) -> None:
    fill(client)
    client.set_payload(NAME, {"tag": "x"}, points=number_from(18))
    client.overwrite_payload(NAME, {"tag": "y"}, points=[IDS[0]])
    client.delete_payload(NAME, ["n"], points=[IDS[1]])
    points = server.collections[NAME].points
    assert [points[IDS[row]].payload for row in (0, 1, 18)] == [
        {"tag": "y"},
        {"kind": "odd"},
        {"n": 18, "kind": "even", "tag": "x"},
    ]


def test_named_and_sparse_vectors_are_searched_by_their_names(client: QdrantClient) -> None:
    small = models.VectorParams(size=2, distance=models.Distance.DOT)
    client.create_collection(
        NAME,
        vectors_config={"big": COSINE, "small": small},
        sparse_vectors_config={"words": models.SparseVectorParams()},
    )
    points = [
        models.PointStruct(
            id=row,
            vector={
                "big": VECTORS[row].tolist(),
                "small": [float(row), 1.0],
                "words": models.SparseVector(indices=[row], values=[1.0]),
            },
        )
        for row in range(5)
    ]
    client.upsert(NAME, points)
    words = models.SparseVector(indices=[2], values=[1.0])
    assert client.query_points(NAME, query=VECTORS[1].tolist(), using="big").points[0].id == 1
    assert [hit.id for hit in client.query_points(NAME, query=[1.0, 0.0], using="small").points] == [4, 3, 2, 1, 0]
    assert [hit.id for hit in client.query_points(NAME, query=words, using="words").points] == [2]
    fused = client.query_points(
        NAME,
        prefetch=[models.Prefetch(query=words, using="words"), models.Prefetch(query=VECTORS[2].tolist(), using="big")],
        query=models.FusionQuery(fusion=models.Fusion.RRF),
    )
    assert fused.points[0].id == 2
    (point,) = client.retrieve(NAME, [3], with_vectors=["small", "words"])
    assert isinstance(point.vector, dict)
    assert point.vector == {"small": [3.0, 1.0], "words": models.SparseVector(indices=[3], values=[1.0])}


def test_settings_and_payload_indexes_are_told_as_they_were_asked_for(client: QdrantClient) -> None:
    quantization = models.ScalarQuantization(scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8))
    fill(
        client,
        shard_number=2,
        hnsw_config=models.HnswConfigDiff(m=8),
        optimizers_config=models.OptimizersConfigDiff(indexing_threshold=0),
        quantization_config=quantization,
    )
    client.update_collection(NAME, optimizers_config=models.OptimizersConfigDiff(indexing_threshold=20_000))
    client.create_payload_index(NAME, "kind", models.PayloadSchemaType.KEYWORD)
    client.create_payload_index(NAME, "n", models.PayloadSchemaType.INTEGER)
    client.delete_payload_index(NAME, "n")
    info = client.get_collection(NAME)
    assert (info.points_count, info.config.params.shard_number, info.config.hnsw_config.m) == (20, 2, 8)
    assert info.config.optimizer_config.indexing_threshold == 20_000
    assert info.config.quantization_config == quantization
    assert {field: index.data_type for field, index in info.payload_schema.items()} == {"kind": "keyword"}


def test_an_alias_stands_for_its_collection_and_is_switched_at_once(client: QdrantClient) -> None:
    fill(client)
    client.create_collection("next", vectors_config=COSINE)
    client.update_collection_aliases([_alias(NAME)])
    assert client.count("live").count == 20
    drop = models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name="live"))
    client.update_collection_aliases([drop, _alias("next")])
    assert client.count("live").count == 0
    assert [alias.alias_name for alias in client.get_collection_aliases("next").aliases] == ["live"]
    assert {each.name for each in client.get_collections().collections} == {NAME, "next"}
    client.delete_collection("next")
    assert not client.collection_exists("live")
    assert not client.get_aliases().aliases


def _alias(collection: str) -> models.CreateAliasOperation:
    return models.CreateAliasOperation(create_alias=models.CreateAlias(collection_name=collection, alias_name="live"))


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([models.PointStruct(id=1, vector=[1.0])], "Vector dimension error: expected dim: 8, got 1"),
        ([models.PointStruct(id=1, vector={"other": [1.0] * DIM})], "Not existing vector name error: other"),
        ([models.PointStruct(id="no uuid", vector=[1.0] * DIM)], "UUID"),
    ],
)
def test_points_that_do_not_fit_are_refused(client: QdrantClient, points: list[models.PointStruct], words: str) -> None:
    client.create_collection(NAME, vectors_config=COSINE)
    with pytest.raises(UnexpectedResponse, match=re.escape(words)) as caught:
        client.upsert(NAME, points)
    assert caught.value.status_code == 400
    assert client.count(NAME).count == 0


def test_it_runs_as_a_process_of_its_own() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.qdrant_server"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        client = QdrantClient(url=process.stdout.readline().strip(), check_compatibility=False)
        fill(client)
        assert client.count(NAME).count == 20
        client.close()
        process.terminate()
