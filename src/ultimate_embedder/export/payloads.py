"""Payloads of uploaded points in the shapes that other programs read: `upload --payload`."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ultimate_embedder.config import one_of
from ultimate_embedder.export.points import point_id
from ultimate_embedder.payload import payload as plain_payload

# how LlamaIndex and Haystack write a point: tests/ecosystem compares with what their packages do
LLAMA_NODE_FIELDS = (
    "excluded_embed_metadata_keys",
    "excluded_llm_metadata_keys",
    "relationships",
    "metadata_template",
    "metadata_separator",
    "mimetype",
    "start_char_idx",
    "end_char_idx",
    "text_template",
)
LLAMA_NOT_KEPT = ("class_name", "embedding", "text_resource", "image_resource", "audio_resource", "video_resource")
LLAMA_SOURCE = "1"  # the relationship of a node to the document that it is from
LLAMA_DOCUMENT_KEYS = ("ref_doc_id", "doc_id", "document_id")
HAYSTACK_NAMESPACE = uuid.UUID("3896d314-1e95-4a3a-b45a-945f9f0b541d")
HAYSTACK_NOT_KEPT = {"blob", "score", "embedding", "sparse_embedding"}  # every document of Haystack has all of them
ID_FIELDS = ("id", "id_", "_id", "chunk_id")
TEXT_FIELDS = ("page_content", "content")
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class ChunkToSend:
    """A chunk as it was exported."""

    chunk_id: str
    collection: str
    file: str
    text: str
    record: Mapping[str, Any]
    """The rest of its record."""

    def provenance(self) -> dict[str, Any]:
        """What we know of it beside its record."""
        return {"chunk_id": self.chunk_id, "collection": self.collection, "file": self.file}


@dataclass(frozen=True)
class PayloadKind:
    """A shape of payloads."""

    name: str
    payload: Callable[[ChunkToSend], dict[str, Any]]
    point_id: Callable[[str, str], str] = point_id
    """The id of a point, by collection and chunk id."""
    chunk_id_path: tuple[str, ...] = ("chunk_id",)
    """Where the payload has the chunk id."""


def payload_kind(name: str) -> PayloadKind:
    """The shape of this name; raises `UsageError` with those that there are."""
    by_name = {kind.name: kind for kind in PAYLOADS}
    return by_name[one_of(name, tuple(by_name), "--payload")]


def _plain(chunk: ChunkToSend) -> dict[str, Any]:
    """The record as it is."""
    return plain_payload(chunk.chunk_id, chunk.collection, chunk.file, chunk.text, dict(chunk.record))


def _langchain(chunk: ChunkToSend) -> dict[str, Any]:
    """As `QdrantVectorStore` of langchain-qdrant writes a `Document`."""
    is_document = chunk.record.get("type") == "Document" and "metadata" in chunk.record
    not_kept = ("type",) if is_document else ()  # of the class, not of the document
    metadata = _metadata(chunk, _uuid_or_ours(chunk.collection, chunk.chunk_id), not_kept)
    return {**chunk.provenance(), "page_content": chunk.text, "metadata": metadata}


def _llama_index(chunk: ChunkToSend) -> dict[str, Any]:
    """As `QdrantVectorStore` of llama-index-vector-stores-qdrant writes a `TextNode`."""
    node_id = _uuid_or_ours(chunk.collection, chunk.chunk_id)
    is_node = isinstance(chunk.record.get("class_name"), str) and "relationships" in chunk.record
    native = {name: chunk.record[name] for name in LLAMA_NODE_FIELDS if is_node and name in chunk.record}
    metadata = _metadata(chunk, node_id, (*native, *LLAMA_NOT_KEPT) if is_node else ())
    document = _document_id(native.get("relationships"), metadata)
    if document is not None and "relationships" not in native:
        native["relationships"] = {LLAMA_SOURCE: {"node_id": document, "class_name": "RelatedNodeInfo"}}
    node = {"id_": node_id, "text": chunk.text, "metadata": metadata, **native, "class_name": "TextNode"}
    return {
        **chunk.provenance(),
        **metadata,  # beside each other, where LlamaIndex looks for them with a filter
        "_node_content": json.dumps(node, ensure_ascii=False),
        "_node_type": "TextNode",
        **dict.fromkeys(LLAMA_DOCUMENT_KEYS, document or "None"),  # which is LlamaIndex's word for none
    }


def _haystack(chunk: ChunkToSend) -> dict[str, Any]:
    """As `QdrantDocumentStore` of qdrant-haystack writes a `Document`: all else is in its `meta`."""
    document_id = _haystack_id(chunk.collection, chunk.chunk_id)
    is_document = chunk.record.keys() >= HAYSTACK_NOT_KEPT
    meta = _metadata(chunk, document_id, tuple(HAYSTACK_NOT_KEPT) if is_document else ())
    payload = {"id": document_id, "content": chunk.text, "meta": {**chunk.provenance(), **meta}}
    return {**payload, "blob": chunk.record["blob"]} if is_document else payload


def _metadata(chunk: ChunkToSend, store_id: str, not_kept: tuple[str, ...] = ()) -> dict[str, Any]:
    """The metadata of a chunk beside the other fields of its record, without what the store has in another place."""
    record = {name: value for name, value in chunk.record.items() if name not in not_kept}
    own = [record.pop(name) for name in ("meta", "metadata") if isinstance(record.get(name), Mapping)]
    for name in ID_FIELDS:
        if record.get(name) == store_id:
            del record[name]
    for name in TEXT_FIELDS:
        if record.get(name) == chunk.text:
            del record[name]
    for each in own:
        record |= each
    return record


def _document_id(relationships: Any, metadata: Mapping[str, Any]) -> str | None:
    """The document that a node is from."""
    source = relationships.get(LLAMA_SOURCE) if isinstance(relationships, Mapping) else None
    found = source.get("node_id") if isinstance(source, Mapping) else None
    if relationships is None:
        found = next((metadata[key] for key in LLAMA_DOCUMENT_KEYS if metadata.get(key)), None)
    return found if isinstance(found, str) else None


def _uuid_or_ours(collection: str, chunk_id: str) -> str:
    """Ids of LangChain and LlamaIndex are UUIDs, and kept; others are given ours, which differ between collections."""
    return chunk_id if _is_uuid(chunk_id) else point_id(collection, chunk_id)


def _haystack_id(collection: str, chunk_id: str) -> str:
    """An id that Haystack has made is kept."""
    return chunk_id if _SHA256.fullmatch(chunk_id) or _is_uuid(chunk_id) else point_id(collection, chunk_id)


def _haystack_point_id(collection: str, chunk_id: str) -> str:
    return str(uuid.uuid5(HAYSTACK_NAMESPACE, _haystack_id(collection, chunk_id)))


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


PAYLOADS = (
    PayloadKind("plain", _plain),
    PayloadKind("langchain", _langchain, _uuid_or_ours),
    PayloadKind("llama-index", _llama_index, _uuid_or_ours),
    PayloadKind("haystack", _haystack, _haystack_point_id, ("meta", "chunk_id")),
)
PAYLOAD_NAMES = tuple(kind.name for kind in PAYLOADS)
PLAIN = PAYLOADS[0]
