"""Vectors of two models never meet in one Qdrant collection, and a damaged points file is not sent."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from qdrant_client import QdrantClient, models

from tests.support.clock import Clock
from tests.support.points import DIM, make_points
from tests.support.qdrant_server import Fault, QdrantServer, StoredCollection
from tests.support.uploads import upload
from ultimate_embedder.cli import main
from ultimate_embedder.errors import UploadError
from ultimate_embedder.events import Event, Retried, Warned
from ultimate_embedder.export import UploadReport, write_exports
from ultimate_embedder.retry import RetryPolicy

TARGET = "docs__model"
IMPATIENT = RetryPolicy(tries=3, first_wait_s=0.01, longest_wait_s=0.02, total_s=5.0)
POINTS = 20
PARAMS = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
KEY = "ultimate_embedder"

Send = Callable[..., UploadReport]


def make(folder: Path, **options: Any) -> Path:
    """A collection with exported points; gives its folder."""
    points = make_points(folder, [{"text": f"text {number}", "id": str(number)} for number in range(POINTS)], **options)
    write_exports(points, folder / "docs", ("parquet",), lambda event: None)
    return folder / "docs"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return make(tmp_path / "m1", digest="1111" * 16)


@pytest.fixture(params=[True, False], ids=["metadata", "no metadata"])
def server(request: pytest.FixtureRequest) -> Iterator[QdrantServer]:
    with QdrantServer(has_metadata=request.param) as running:
        yield running


@pytest.fixture
def send(server: QdrantServer, seen: list[Event]) -> Send:
    def call(folder: Path, **options: Any) -> UploadReport:
        (report,) = upload(folder, server.url, **{"emit": seen.append, "policy": IMPATIENT, **options})
        return report

    return call


def warnings(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Warned)]


# -- one origin per collection


def test_the_vectors_of_another_model_of_the_same_name_are_refused(
    docs: Path, tmp_path: Path, server: QdrantServer, send: Send
) -> None:
    send(docs)
    sent = len(server.sent_ids())
    with pytest.raises(UploadError) as caught:
        send(make(tmp_path / "m2", digest="2222" * 16))
    words = str(caught.value)
    assert (
        f"{TARGET} on {server.url} has vectors of model (111111111111), and those of docs are of model (2222" in words
    )
    assert "model digest there is '1111111111111111', ours is '2222222222222222'" in words
    assert words.endswith(
        "Give another name with --collection, or delete that collection with --recreate to send everything anew."
    )
    assert len(server.sent_ids()) == sent


@pytest.mark.parametrize("options", [{"models": ("other",)}, {"digest": "2222"}])
def test_an_exit_code_tells_that_it_was_refused(
    docs: Path, tmp_path: Path, server: QdrantServer, options: dict[str, Any]
) -> None:
    assert main(["upload", str(docs), "--url", server.url, "--quiet"]) == 0
    other = make(tmp_path / "m2", **options)
    assert main(["upload", str(other), "--url", server.url, "--collection", TARGET, "--quiet"]) == 1


def test_the_same_vectors_are_sent_again_and_other_chunks_of_the_same_model_join_them(
    docs: Path, tmp_path: Path, server: QdrantServer, send: Send, seen: list[Event]
) -> None:
    assert send(docs).counted == POINTS
    assert send(docs).counted == POINTS
    points = make_points(tmp_path / "m3", [{"text": "new", "id": "new"}], digest="1111" * 16)
    write_exports(points, tmp_path / "m3" / "docs", ("parquet",), lambda event: None)
    assert send(tmp_path / "m3" / "docs").counted == 1
    assert len(server.collections[TARGET].points) == POINTS + 1
    assert not warnings(seen)


def test_what_is_noted_is_in_the_metadata_or_in_the_payloads(docs: Path, server: QdrantServer, send: Send) -> None:
    send(docs)
    stored = server.collections[TARGET]
    payloads = [point.payload or {} for point in stored.points.values()]
    if server.has_metadata:
        assert stored.metadata is not None
        assert stored.metadata[KEY]["passes"][0]["model_digest"] == "1111" * 16
        assert all(KEY not in payload for payload in payloads)
    else:
        assert all(payload[KEY]["passes"][0]["model"] == "model" for payload in payloads)


def test_a_collection_of_others_is_refused(docs: Path, server: QdrantServer, send: Send) -> None:
    stranger = str(uuid.uuid4())
    server.collections[TARGET] = StoredCollection(PARAMS, {stranger: models.Record(id=stranger)})
    with pytest.raises(UploadError, match=r"has 1 points, none of them of docs, and does not say which model"):
        send(docs)
    assert not server.sent_ids()


def test_an_empty_collection_of_others_is_taken(docs: Path, server: QdrantServer, send: Send) -> None:
    server.collections[TARGET] = StoredCollection(PARAMS)
    assert send(docs).counted == POINTS


def test_a_collection_that_an_earlier_version_filled_is_noted_with_a_word(
    docs: Path, tmp_path: Path, server: QdrantServer, send: Send, seen: list[Event]
) -> None:
    send(docs)
    stored = server.collections[TARGET]
    stored.metadata = None
    QdrantClient(url=server.url, check_compatibility=False).delete_payload(TARGET, [KEY], points=list(stored.points))
    assert send(docs).counted == POINTS
    assert warnings(seen)[0].startswith(f"{TARGET} does not say which model its vectors are from: an earlier version")
    with pytest.raises(UploadError, match="cannot be searched together"):
        send(make(tmp_path / "m2", digest="2222"))


def forget_origin(folder: Path) -> None:
    """As an earlier version wrote it."""
    table = pq.read_table(folder / "chunks.parquet")
    metadata = {name: value for name, value in table.schema.metadata.items() if name != b"vector_origin"}
    pq.write_table(table.replace_schema_metadata(metadata), folder / "chunks.parquet")
    (folder / "store" / "exports.json").unlink()


def test_points_of_an_earlier_version_are_sent_with_a_word_and_mixed_with_none(
    docs: Path, tmp_path: Path, send: Send, seen: list[Event]
) -> None:
    old = make(tmp_path / "old")
    forget_origin(old)
    assert send(old, collection="old").counted == POINTS
    assert any("does not say which model its vectors are from" in words for words in warnings(seen))
    send(docs)
    with pytest.raises(
        UploadError, match=r"Run the same embed command again, which notes it and computes nothing anew"
    ):
        send(old)


@pytest.mark.parametrize("noted", [[], "x", 3, {"fingerprint": 5}, {"fingerprint": "x", "passes": 7, "fusion": []}])
def test_a_note_that_makes_no_sense_is_refused(docs: Path, noted: Any) -> None:
    with QdrantServer() as server:
        server.collections[TARGET] = StoredCollection(PARAMS, metadata={KEY: noted})
        with pytest.raises(UploadError, match="Give another name with --collection"):
            upload(docs, server.url, lambda event: None, policy=IMPATIENT)


@pytest.mark.parametrize("metadata", [[], "x", 7])
def test_metadata_of_another_kind_is_an_error_in_words(docs: Path, metadata: Any) -> None:
    with QdrantServer() as server:
        server.collections[TARGET] = StoredCollection(PARAMS, metadata=metadata)
        with pytest.raises(UploadError, match=r"cannot read the metadata of docs__model .* Check --url"):
            upload(docs, server.url, lambda event: None, policy=IMPATIENT)


# -- what is sent is what was written


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_file_is_refused_before_anything_is_sent(docs: Path, server: QdrantServer, send: Send) -> None:
    change_a_byte(docs / "chunks.parquet")
    with pytest.raises(UploadError, match=r"is damaged or was changed: .*Nothing was sent. Run the same embed command"):
        send(docs)
    assert not server.requests


def test_a_file_that_was_copied_alone_is_sent_and_said_to_be_unchecked(
    docs: Path, tmp_path: Path, send: Send, seen: list[Event]
) -> None:
    (tmp_path / "alone").mkdir()
    shutil.copy(docs / "chunks.parquet", tmp_path / "alone")
    assert send(tmp_path / "alone").counted == POINTS
    assert any("chunks.parquet is sent unchecked: its checksum is not recorded" in words for words in warnings(seen))


def test_damage_is_found_without_a_recorded_checksum_too(docs: Path, server: QdrantServer, send: Send) -> None:
    (docs / "store" / "exports.json").unlink()
    change_a_byte(docs / "chunks.parquet")
    with pytest.raises(UploadError, match=r"chunks.parquet cannot be read"):
        send(docs)
    assert not server.sent_ids()


def column(name: str, values: Any, kind: Any = None) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        number = table.schema.get_field_index(name)
        made = pa.array(values, kind or table.schema.field(name).type)
        return table.set_column(number, name, made)

    return change


def not_utf_8(table: pa.Table) -> pa.Table:
    offsets = np.arange(0, 2 * POINTS + 1, 2, dtype=np.int64)
    texts = pa.LargeStringArray.from_buffers(POINTS, pa.py_buffer(offsets), pa.py_buffer(b"\xff\xfe" * POINTS))
    return table.set_column(table.schema.get_field_index("text"), "text", texts)


UNFIT: dict[str, Callable[[Any], Any]] = {
    "dims": column("vector", [[1.0, 2.0]] * POINTS, pa.list_(pa.float32())),
    "doubles": column("vector", [[1.0] * DIM] * POINTS, pa.list_(pa.float64(), DIM)),
    "nan": column("vector", [[float("nan")] * DIM] * POINTS),
    "infinite": column("vector", [[float("inf")] * DIM] * POINTS),
    "no vector": column("vector", [None] * POINTS),
    "no uuid": column("point_id", ["../../x"] * POINTS),
    "no id": column("point_id", [None] * POINTS),
    "numbers": column("point_id", list(range(POINTS)), pa.int64()),
    "no json": column("extra", ["{"] * POINTS),
    "no object": column("extra", ["[]"] * POINTS),
    "metadata": column("metadata", ["nope"] * POINTS),
    "text is bytes": column("text", [b"\xff"] * POINTS, pa.binary()),
    "not utf-8": not_utf_8,
    "no texts": lambda table: table.drop_columns(["text"]),
    "no vectors": lambda table: table.drop_columns(["vector"]),
}


@pytest.mark.parametrize("unfit", UNFIT)
def test_a_file_with_other_content_is_an_error_in_words(docs: Path, unfit: str) -> None:
    path = docs / "chunks.parquet"
    table = pq.read_table(path)
    pq.write_table(UNFIT[unfit](table).replace_schema_metadata(table.schema.metadata), path)
    (docs / "store" / "exports.json").unlink()
    with QdrantServer() as server:
        with pytest.raises(UploadError) as caught:
            upload(docs, server.url, lambda event: None, policy=IMPATIENT)
        assert str(path) in str(caught.value)
        assert not server.sent_ids()


# -- answers


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("wait", ["-5", "soon", "1e9", "NaN", "９", "", "-0"])
def test_a_wait_that_makes_no_sense_is_not_waited_for(docs: Path, seen: list[Event], status: int, wait: str) -> None:
    with QdrantServer() as server:
        server.faults.append(Fault("PUT", "/points", status=status, retry_after=wait))
        upload(docs, server.url, seen.append, policy=IMPATIENT)
    (retried,) = [event for event in seen if isinstance(event, Retried)]
    assert 0 <= retried.wait_seconds < 1


def test_a_wait_of_another_error_is_honoured(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("ultimate_embedder.retry.time", clock)
    with QdrantServer() as server:
        server.faults.append(Fault("PUT", "/points", status=503, retry_after="2"))
        upload(docs, server.url, lambda event: None, policy=IMPATIENT)
    assert clock.slept_s == [2]


def test_a_redirect_is_told(docs: Path) -> None:
    with QdrantServer() as server:
        server.faults.append(Fault("GET", "/exists", status=301, times=9))
        with pytest.raises(
            UploadError, match=r"301 Moved Permanently.+redirects to nowhere: give the address of Qdrant"
        ):
            upload(docs, server.url, lambda event: None, policy=IMPATIENT)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Welcome!</html>",
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"null",
        b'{"result": null, "status": "ok", "time": 0}',
        json.dumps({"result": {"config": {"params": {"vectors": 7}}, "exists": True, "count": -1}}).encode(),
    ],
)
@pytest.mark.parametrize("call", [("GET", "/exists"), ("GET", "/collections/docs__model$"), ("POST", "/count")])
def test_an_answer_that_is_not_of_qdrant_is_an_error_in_words(docs: Path, call: tuple[str, str], body: bytes) -> None:
    with QdrantServer() as server:
        server.faults.append(Fault(*call, status=200, body=body, times=99))
        with pytest.raises(UploadError):
            upload(docs, server.url, lambda event: None, policy=IMPATIENT)
