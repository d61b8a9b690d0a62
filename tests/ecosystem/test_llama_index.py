"""LlamaIndex's `QdrantVectorStore` finds what `upload --payload llama-index` has sent, with no further settings."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from qdrant_client import QdrantClient

from tests.ecosystem.conftest import ADDED, QUESTION, TARGET, TEXTS, TOPICS, Upload, ranked
from tests.support.qdrant_server import QdrantServer

pytest.importorskip("llama_index.vector_stores.qdrant", reason="llama-index is not installed: make test-ecosystem")

from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import ExactMatchFilter, MetadataFilters
from llama_index.core.vector_stores.utils import node_to_metadata_dict
from llama_index.vector_stores.qdrant import QdrantVectorStore


class MiniLM(BaseEmbedding):
    """The model of the collection, as LlamaIndex asks for vectors."""

    encode: Any

    def _get_text_embedding(self, text: str) -> list[float]:
        return self.encode([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self.encode([query])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


def open_index(url: str, encode: Any) -> VectorStoreIndex:
    store = QdrantVectorStore(TARGET, client=QdrantClient(url=url, check_compatibility=False))
    return VectorStoreIndex.from_vector_store(store, embed_model=MiniLM(encode=encode))


@pytest.fixture
def index(upload: Upload, encode: Any) -> VectorStoreIndex:
    return open_index(upload("llama-index"), encode)


def test_texts_come_in_the_order_of_their_cosine_with_their_metadata(index: VectorStoreIndex, encode: Any) -> None:
    found = index.as_retriever(similarity_top_k=len(TEXTS)).retrieve(QUESTION)
    wanted = ranked(encode, list(TEXTS))
    assert [each.text for each in found] == [text for text, _ in wanted]
    assert [each.score for each in found] == pytest.approx([cosine for _, cosine in wanted], abs=1e-5)
    name = next(name for name, text in TEXTS.items() if text == found[0].text)
    assert found[0].metadata == {"id": name, "topic": "time", "page": list(TEXTS).index(name), "tags": ["a", "b"]}


def test_a_filter_of_metadata_finds_only_those(index: VectorStoreIndex, encode: Any) -> None:
    filters = MetadataFilters(filters=[ExactMatchFilter(key="topic", value="food")])
    found = index.as_retriever(similarity_top_k=10, filters=filters).retrieve(QUESTION)
    assert [each.text for each in found] == [
        text for text, _ in ranked(encode, [name for name in TEXTS if TOPICS.get(name) == "food"])
    ]


def test_a_node_that_the_store_adds_is_found_with_ours(index: VectorStoreIndex) -> None:
    index.insert_nodes([TextNode(text=ADDED, metadata={"topic": "time"})])
    found = index.as_retriever(similarity_top_k=len(TEXTS) + 1).retrieve(QUESTION)
    assert {each.text for each in found} == {*TEXTS.values(), ADDED}
    ours = next(each for each in found if each.text == TEXTS["soup"])
    store = index.vector_store
    assert [each.get_content() for each in store.get_nodes([ours.node_id])] == [TEXTS["soup"]]
    store.delete_nodes([ours.node_id])
    assert TEXTS["soup"] not in {each.text for each in index.as_retriever(similarity_top_k=20).retrieve(QUESTION)}


def make_nodes() -> list[TextNode]:
    return [
        TextNode(
            id_=str(uuid.uuid5(uuid.NAMESPACE_URL, name)),
            text=text,
            metadata={"file_name": f"{name}.pdf", "deep": {"page": 3}},
            excluded_llm_metadata_keys=["file_name"],
            start_char_idx=7,
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"paper of {TOPICS.get(name)}")},
        )
        for name, text in TEXTS.items()
    ]


def rows(nodes: list[TextNode]) -> list[dict[str, Any]]:
    return [{"id": node.node_id, **node.to_dict()} for node in nodes]


def test_nodes_of_llama_index_come_back_as_they_were(upload: Upload, encode: Any) -> None:
    nodes = make_nodes()
    index = open_index(upload("llama-index", rows(nodes)), encode)
    found = index.as_retriever(similarity_top_k=len(TEXTS)).retrieve(QUESTION)
    assert {each.node_id: _stored(each.node) for each in found} == {node.node_id: _stored(node) for node in nodes}
    index.delete_ref_doc("paper of food")
    left = index.as_retriever(similarity_top_k=len(TEXTS)).retrieve(QUESTION)
    assert {each.text for each in left} == {TEXTS[name] for name in TEXTS if TOPICS.get(name) != "food"}


def test_the_payload_is_the_one_that_llama_index_writes(upload: Upload, server: QdrantServer) -> None:
    nodes = make_nodes()
    upload("llama-index", rows(nodes))
    for node in nodes:
        theirs, ours = node_to_metadata_dict(node), server.collections[TARGET].points[node.node_id].payload or {}
        wanted, found = json.loads(theirs.pop("_node_content")), json.loads(ours.pop("_node_content"))
        assert found.items() <= wanted.items()
        assert not any(wanted[name] for name in wanted.keys() - found.keys())
        assert theirs.items() <= ours.items()
        assert ours.keys() - theirs.keys() == {"chunk_id", "collection", "file"}


def _stored(node: Any) -> dict[str, Any]:
    return {name: value for name, value in node.to_dict().items() if name != "embedding"}
