"""Haystack's `QdrantDocumentStore` finds what `upload --payload haystack` has sent, with no further settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.ecosystem.conftest import ADDED, DIM, QUESTION, TARGET, TEXTS, TOPICS, Upload, ranked
from tests.support.qdrant_server import QdrantServer

pytest.importorskip(
    "haystack_integrations.document_stores.qdrant", reason="qdrant-haystack is not installed: make test-ecosystem"
)

from haystack import Document
from haystack_integrations.components.retrievers.qdrant import QdrantEmbeddingRetriever
from haystack_integrations.document_stores.qdrant import QdrantDocumentStore
from haystack_integrations.document_stores.qdrant.converters import convert_haystack_documents_to_qdrant_points


def open_store(url: str) -> QdrantDocumentStore:
    return QdrantDocumentStore(url=url, index=TARGET, embedding_dim=DIM, progress_bar=False)


@pytest.fixture
def store(upload: Upload) -> Iterator[QdrantDocumentStore]:
    opened = open_store(upload("haystack"))
    yield opened
    opened.close()


def retrieve(store: QdrantDocumentStore, encode: Any, top_k: int = 20, filters: Any = None) -> list[Document]:
    retriever = QdrantEmbeddingRetriever(document_store=store, top_k=top_k, scale_score=False)
    return retriever.run(query_embedding=encode([QUESTION])[0], filters=filters)["documents"]


def test_texts_come_in_the_order_of_their_cosine_with_their_metadata(store: QdrantDocumentStore, encode: Any) -> None:
    found = retrieve(store, encode)
    wanted = ranked(encode, list(TEXTS))
    assert [each.content for each in found] == [text for text, _ in wanted]
    assert [each.score for each in found] == pytest.approx([cosine for _, cosine in wanted], abs=1e-5)
    name = next(name for name, text in TEXTS.items() if text == found[0].content)
    ours = {"chunk_id": name, "collection": "notes", "file": "a_chunks.json"}
    assert found[0].meta == {
        **ours,
        "id": name,
        "topic": "time",
        "page": list(TEXTS).index(name),
        "tags": ["a", "b"],
    }


def test_a_filter_of_metadata_finds_only_those(store: QdrantDocumentStore, encode: Any) -> None:
    found = retrieve(store, encode, filters={"field": "meta.topic", "operator": "==", "value": "food"})
    assert [each.content for each in found] == [
        text for text, _ in ranked(encode, [name for name in TEXTS if TOPICS.get(name) == "food"])
    ]


def test_a_document_that_the_store_adds_is_found_with_ours(store: QdrantDocumentStore, encode: Any) -> None:
    added = Document(content=ADDED, meta={"topic": "time"}, embedding=encode([ADDED])[0])
    assert store.write_documents([added]) == 1
    found = retrieve(store, encode)
    assert {each.content for each in found} == {*TEXTS.values(), ADDED}
    assert store.count_documents() == len(TEXTS) + 1
    store.delete_documents([each.id for each in found if each.content == TEXTS["soup"]])
    assert TEXTS["soup"] not in {each.content for each in retrieve(store, encode)}


def make_documents() -> list[Document]:
    return [Document(content=text, meta={"source": f"{name}.pdf", "page": 3}) for name, text in TEXTS.items()]


def rows(documents: list[Document], *, flatten: bool) -> list[dict[str, Any]]:
    return [{"text": each.content, **each.to_dict(flatten=flatten)} for each in documents]


@pytest.mark.parametrize("flatten", [True, False])
def test_documents_of_haystack_come_back_as_they_were(upload: Upload, flatten: bool) -> None:
    documents = make_documents()
    store = open_store(upload("haystack", rows(documents, flatten=flatten)))
    found = {each.id: each for each in store.filter_documents()}
    assert {name: each.content for name, each in found.items()} == {each.id: each.content for each in documents}
    for document in documents:
        meta = found[document.id].meta
        assert document.meta.items() <= meta.items()
        assert meta.keys() - document.meta.keys() == {"chunk_id", "collection", "file"}
    store.delete_documents([documents[0].id])
    assert store.count_documents() == len(documents) - 1
    store.close()


def test_the_points_are_those_that_haystack_writes(upload: Upload, server: QdrantServer) -> None:
    documents = make_documents()
    upload("haystack", rows(documents, flatten=False))
    for point in convert_haystack_documents_to_qdrant_points(documents, use_sparse_embeddings=False):
        ours = dict(server.collections[TARGET].points[str(point.id)].payload or {})
        theirs = {name: value for name, value in (point.payload or {}).items() if value is not None}
        assert theirs.pop("meta").items() <= ours.pop("meta").items()
        assert {name: value for name, value in ours.items() if value is not None} == theirs
