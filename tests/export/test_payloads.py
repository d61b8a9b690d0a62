"""Payloads in the shapes of other programs. What those programs make of them is tested in `tests/ecosystem`."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.points import make_points
from tests.support.qdrant_server import QdrantServer
from tests.support.uploads import upload
from ultimate_embedder.cli import main
from ultimate_embedder.errors import UploadError, UsageError
from ultimate_embedder.export import point_id, write_exports
from ultimate_embedder.export.payloads import PAYLOAD_NAMES, PLAIN, ChunkToSend, payload_kind

OWN_ID = "6c1d0c7e-5a52-4a8e-9d53-0f2f6d1a1b11"
SHA = hashlib.sha256(b"x").hexdigest()
RECORDS = [
    {"text": "one", "id": "1", "metadata": {"page": 1, "deep": {"a": [1]}}, "source": "a.pdf"},
    {"text": "two", "id": OWN_ID, "metadata": {"page": 2}},
]
TARGET = "docs__model"


def chunk(record: dict[str, Any], chunk_id: str = "1", text: str = "a text") -> ChunkToSend:
    return ChunkToSend(chunk_id, "docs", "a.json", text, record)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    write_exports(make_points(tmp_path, RECORDS), tmp_path / "docs", ("parquet",), lambda event: None)
    return tmp_path / "docs"


@pytest.fixture(params=[True, False], ids=["metadata", "no metadata"])
def server(request: pytest.FixtureRequest) -> Iterator[QdrantServer]:
    with QdrantServer(has_metadata=request.param) as running:
        yield running


def send(folder: Path, server: QdrantServer, **options: Any) -> int:
    (report,) = upload(folder, server.url, lambda event: None, **options)
    return report.counted


# shapes


def test_plain_is_the_record_as_it_is() -> None:
    payload = payload_kind("plain").payload(chunk({"id": "1", "metadata": {"page": 1}, "source": "s"}))
    assert payload == {
        "chunk_id": "1",
        "collection": "docs",
        "file": "a.json",
        "id": "1",
        "metadata": {"page": 1},
        "source": "s",
        "text": "a text",
    }


def test_langchain_has_the_text_as_page_content_and_all_fields_of_the_record_as_metadata() -> None:
    payload = payload_kind("langchain").payload(chunk({"id": "1", "metadata": {"page": 1}, "source": "s"}))
    assert payload == {
        "chunk_id": "1",
        "collection": "docs",
        "file": "a.json",
        "page_content": "a text",
        "metadata": {"id": "1", "page": 1, "source": "s"},
    }


def test_llama_index_has_a_node_and_its_metadata_beside_it() -> None:
    payload = payload_kind("llama-index").payload(chunk({"metadata": {"page": 1, "doc_id": "paper"}}))
    node = json.loads(payload.pop("_node_content"))
    assert node == {
        "id_": point_id("docs", "1"),
        "text": "a text",
        "metadata": {"page": 1, "doc_id": "paper"},
        "relationships": {"1": {"node_id": "paper", "class_name": "RelatedNodeInfo"}},
        "class_name": "TextNode",
    }
    assert payload == {
        "chunk_id": "1",
        "collection": "docs",
        "file": "a.json",
        "page": 1,
        "_node_type": "TextNode",
        **dict.fromkeys(("doc_id", "document_id", "ref_doc_id"), "paper"),
    }


def test_haystack_has_everything_but_the_text_in_meta() -> None:
    payload = payload_kind("haystack").payload(chunk({"id": "1", "meta": {"page": 1}, "score": 5}))
    assert payload == {
        "id": point_id("docs", "1"),
        "content": "a text",
        "meta": {"chunk_id": "1", "collection": "docs", "file": "a.json", "id": "1", "page": 1, "score": 5},
    }


@pytest.mark.parametrize(
    ("kind", "record", "chunk_id", "metadata"),
    [
        (
            "langchain",
            {"id": OWN_ID, "metadata": {"page": 1}, "page_content": "a text", "type": "Document"},
            OWN_ID,
            {"page": 1},
        ),
        ("langchain", {"type": "article", "page_content": "other"}, "1", {"type": "article", "page_content": "other"}),
        (
            "haystack",
            {"id": SHA, "meta": {"page": 1}, **dict.fromkeys(("blob", "score", "embedding", "sparse_embedding"))},
            SHA,
            {"page": 1},
        ),
        ("haystack", {"blob": "mine", "embedding": 7}, "1", {"blob": "mine", "embedding": 7}),
        ("langchain", {"metadata": {"type": "Document"}}, "1", {"type": "Document"}),
        (
            "llama-index",
            {"id_": OWN_ID, "metadata": {"page": 1}, "class_name": "TextNode", "relationships": {}, "embedding": None},
            OWN_ID,
            {"page": 1},
        ),
        ("langchain", {"metadata": "a word"}, "1", {"metadata": "a word"}),
        ("langchain", {"metadata": {"page": 1}, "page": 2}, "1", {"page": 1}),
    ],
)
def test_the_metadata_of_a_record_comes_back_as_it_was(
    kind: str, record: dict[str, Any], chunk_id: str, metadata: dict[str, Any]
) -> None:
    payload = payload_kind(kind).payload(chunk(record, chunk_id))
    node = json.loads(payload.get("_node_content", "{}"))
    found = payload.get("meta", node.get("metadata", payload.get("metadata")))
    assert {name: found[name] for name in found if name not in ("chunk_id", "collection", "file")} == metadata


def test_a_node_of_llama_index_keeps_its_relationships_and_templates() -> None:
    record = {
        "id_": OWN_ID,
        "metadata": {"page": 1},
        "relationships": {"1": {"node_id": "paper", "class_name": "RelatedNodeInfo"}, "3": {"node_id": "next"}},
        "excluded_llm_metadata_keys": ["page"],
        "text_template": "{content}",
        "class_name": "TextNode",
        "text_resource": {"text": "a text"},
    }
    payload = payload_kind("llama-index").payload(chunk(record, OWN_ID))
    node = json.loads(payload["_node_content"])
    wanted = {name: record[name] for name in record if name != "text_resource"}
    assert node == {**wanted, "text": "a text"}
    assert payload["doc_id"] == "paper"


# ids


@pytest.mark.parametrize("kind", ["langchain", "llama-index"])
def test_a_uuid_is_the_id_of_its_point_and_other_ids_are_given_one(kind: str) -> None:
    assert payload_kind(kind).point_id("docs", OWN_ID) == OWN_ID
    assert payload_kind(kind).point_id("docs", "1") == point_id("docs", "1")
    assert payload_kind(kind).point_id("docs", OWN_ID.upper()) == point_id("docs", OWN_ID.upper())


def test_a_point_of_haystack_has_the_id_that_haystack_gives_to_its_document() -> None:
    namespace = uuid.UUID("3896d314-1e95-4a3a-b45a-945f9f0b541d")
    assert payload_kind("haystack").point_id("docs", SHA) == str(uuid.uuid5(namespace, SHA))
    assert payload_kind("haystack").point_id("docs", "1") == str(uuid.uuid5(namespace, point_id("docs", "1")))


def test_the_same_short_id_in_two_collections_is_two_points() -> None:
    for name in PAYLOAD_NAMES:
        assert payload_kind(name).point_id("docs", "1") != payload_kind(name).point_id("notes", "1")


# uploads


@pytest.mark.parametrize("kind", PAYLOAD_NAMES)
def test_points_are_uploaded_counted_and_uploaded_again_without_doubles(
    docs: Path, server: QdrantServer, kind: str
) -> None:
    assert send(docs, server, payload=kind) == 2
    assert send(docs, server, payload=kind) == 2
    points = server.collections[TARGET].points
    assert set(points) == {payload_kind(kind).point_id("docs", str(record["id"])) for record in RECORDS}
    for record in RECORDS:
        value: Any = points[payload_kind(kind).point_id("docs", str(record["id"]))].payload
        for key in payload_kind(kind).chunk_id_path:
            value = value[key]
        assert value == record["id"]


def test_another_shape_is_not_mixed_in(docs: Path, server: QdrantServer) -> None:
    send(docs, server, payload="langchain")
    sent = len(server.sent_ids())
    with pytest.raises(
        UploadError, match=r"was uploaded with --payload langchain, and now it is plain: .*another name"
    ):
        send(docs, server)
    with pytest.raises(UploadError, match=r"was uploaded with --payload langchain, and now it is haystack"):
        send(docs, server, payload="haystack")
    assert len(server.sent_ids()) == sent
    assert send(docs, server, payload="haystack", collection="other") == 2


def test_a_collection_of_an_earlier_version_is_plain(docs: Path, server: QdrantServer) -> None:
    send(docs, server)
    noted = server.collections[TARGET].metadata
    assert noted is None or "payload" not in noted["ultimate_embedder"]
    with pytest.raises(UploadError, match=r"was uploaded with --payload plain, and now it is langchain"):
        send(docs, server, payload="langchain")


def test_the_command_takes_the_shape_and_names_those_that_there_are(
    docs: Path, server: QdrantServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upload", str(docs), "--url", server.url, "--payload", "llama-index", "--quiet"]) == 0
    assert all("_node_content" in (point.payload or {}) for point in server.collections[TARGET].points.values())
    assert main(["upload", str(docs), "--url", server.url, "--payload", "llamaindex", "--quiet"]) == 2
    assert "plain, langchain, llama-index, haystack" in capsys.readouterr().err


def test_a_shape_that_is_none_is_an_error_in_words() -> None:
    with pytest.raises(UsageError, match="--payload"):
        payload_kind("semantic-kernel")
    assert payload_kind("plain") is PLAIN
