"""LangChain's `QdrantVectorStore` finds what `upload --payload langchain` has sent, with no further settings."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from qdrant_client import models

from tests.ecosystem.conftest import ADDED, QUESTION, TARGET, TEXTS, TOPICS, Upload, ranked

pytest.importorskip("langchain_qdrant", reason="langchain-qdrant is not installed: make test-ecosystem")

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_qdrant import QdrantVectorStore


class MiniLM(Embeddings):
    """The model of the collection, as LangChain asks for vectors."""

    def __init__(self, encode: Any) -> None:
        self._encode = encode

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._encode(texts)

    def embed_query(self, text: str) -> list[float]:
        return self._encode([text])[0]


@pytest.fixture
def store(upload: Upload, encode: Any) -> QdrantVectorStore:
    return QdrantVectorStore.from_existing_collection(TARGET, MiniLM(encode), url=upload("langchain"))


def test_texts_come_in_the_order_of_their_cosine_with_their_metadata(store: QdrantVectorStore, encode: Any) -> None:
    found = store.similarity_search_with_score(QUESTION, k=len(TEXTS))
    wanted = ranked(encode, list(TEXTS))
    assert [document.page_content for document, _ in found] == [text for text, _ in wanted]
    assert [score for _, score in found] == pytest.approx([cosine for _, cosine in wanted], abs=1e-5)
    first = found[0][0]
    name = next(name for name, text in TEXTS.items() if text == first.page_content)
    metadata = {key: value for key, value in first.metadata.items() if not key.startswith("_")}
    assert metadata == {"id": name, "topic": "time", "page": list(TEXTS).index(name), "tags": ["a", "b"]}


def test_a_filter_of_metadata_finds_only_those(store: QdrantVectorStore, encode: Any) -> None:
    food = models.Filter(must=[models.FieldCondition(key="metadata.topic", match=models.MatchValue(value="food"))])
    found = store.similarity_search(QUESTION, k=10, filter=food)
    assert [each.page_content for each in found] == [
        text for text, _ in ranked(encode, [name for name in TEXTS if TOPICS.get(name) == "food"])
    ]


def test_a_document_that_the_store_adds_is_found_with_ours(store: QdrantVectorStore) -> None:
    (added,) = store.add_documents([Document(page_content=ADDED, metadata={"topic": "time"})])
    found = store.similarity_search(QUESTION, k=len(TEXTS) + 1)
    assert {each.page_content for each in found} == {*TEXTS.values(), ADDED}
    assert [each.page_content for each in store.get_by_ids([added])] == [ADDED]
    ours = next(each for each in found if each.page_content == TEXTS["soup"])
    store.delete([ours.metadata["_id"]])
    assert TEXTS["soup"] not in {each.page_content for each in store.similarity_search(QUESTION, k=20)}


def test_documents_of_langchain_come_back_as_they_were(upload: Upload, encode: Any) -> None:
    documents = [
        Document(page_content=text, metadata={"source": f"{name}.pdf", "deep": {"page": 3}}, id=str(uuid.uuid4()))
        for name, text in TEXTS.items()
    ]
    url = upload("langchain", [{"text": each.page_content, **each.model_dump()} for each in documents])
    store = QdrantVectorStore.from_existing_collection(TARGET, MiniLM(encode), url=url)
    found = store.get_by_ids([str(each.id) for each in documents])
    stored = {"_id", "_collection_name"}
    assert {each.page_content: _without(each.metadata, stored) for each in found} == {
        each.page_content: each.metadata for each in documents
    }
    assert {each.metadata["_id"] for each in found} == {each.id for each in documents}


def _without(metadata: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if name not in keys}
