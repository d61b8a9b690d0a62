"""Uploads to a server that behaves, misbehaves, hangs up, forgets, or belongs to somebody else."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from qdrant_client import models

from tests.support.clock import Clock
from tests.support.damage import Damage, damages
from tests.support.qdrant_server import Fault, QdrantServer, StoredCollection
from tests.support.tiny_models import tiny_model
from tests.support.uploads import upload
from ultimate_embedder import embed
from ultimate_embedder.cli import main
from ultimate_embedder.errors import UploadError
from ultimate_embedder.events import BatchUploaded, Event, Retried, UploadFinished, UploadStarted, Warned
from ultimate_embedder.export import UploadReport, point_id, upload_state
from ultimate_embedder.export.journal import read_export_journal, write_export_journal
from ultimate_embedder.export.server.failures import UNREACHABLE_TRIES
from ultimate_embedder.files import file_sha256
from ultimate_embedder.retry import RetryPolicy

CHUNKS = 300
DIM = 64
DOCS = "docs__tiny-bert"
UPLOAD_MODULE = importlib.import_module("ultimate_embedder.export.server.upload")
IMPATIENT = RetryPolicy(tries=4, first_wait_s=0.01, longest_wait_s=0.02, total_s=5.0)
CALLS = {
    "look up": ("GET", "/exists$"),
    "create": ("PUT", f"/collections/{DOCS}$"),
    "send": ("PUT", "/points"),
    "count": ("POST", "/count"),
}

Send = Callable[..., list[UploadReport]]


def make_records(count: int) -> list[dict[str, Any]]:
    return [
        {
            "text": f"Chunk {number} says ünïcode 表 🙂 and " + "more " * (number % 30),
            "metadata": {"chunk_id": f"chunk-{number}", "page": number, "tags": ["a", None], "deep": {"": 1.5}},
            "source": "generated",
        }
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of one real run over two collections."""
    root = tmp_path_factory.mktemp("upload")
    for name, count in (("docs", CHUNKS), ("notes", 20)):
        folder = root / "chunks" / name
        folder.mkdir(parents=True)
        (folder / "a_chunks.json").write_text(json.dumps(make_records(count)), encoding="utf-8")
    embed(root / "chunks", root / "out", models=[str(tiny_model("bert"))], exports=["parquet"], quiet=True)
    return root / "out"


@pytest.fixture
def out(exports: Path, tmp_path: Path) -> Path:
    """A copy of the output that a test may change."""
    return shutil.copytree(exports, tmp_path / "out")


@pytest.fixture
def docs(out: Path) -> Path:
    """The larger of the two collections."""
    return out / "docs"


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with QdrantServer() as running:
        yield running


@pytest.fixture
def usual() -> dict[str, Any]:
    """Options of every upload of a test."""
    return {}


@pytest.fixture
def send(server: QdrantServer, seen: list[Event], usual: dict[str, Any]) -> Send:
    """Upload to the server with short waits; the events go to `seen`."""

    def call(folder: Path, **options: Any) -> list[UploadReport]:
        return upload(folder, server.url, **{"emit": seen.append, "policy": IMPATIENT, **usual, **options})

    return call


@pytest.fixture
def small_batches(usual: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten points a batch, one after the other, each noted in the journal."""
    usual |= {"batch_size": 10, "parallel": 1}
    monkeypatch.setattr(upload_state, "JOURNAL_EVERY_POINTS", 10)


@pytest.fixture
def impatient_cli(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line has no option for it: let its policy be ours."""
    monkeypatch.setattr(UPLOAD_MODULE, "retry_policy", lambda: IMPATIENT)


def of_kind(kind: type[Event], events: list[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def interrupt_after(batches: int) -> Callable[[Event], None]:
    """An event sink that acts as a user who presses Ctrl-C after some batches."""
    left = batches

    def sink(event: Event) -> None:
        nonlocal left
        left -= isinstance(event, BatchUploaded)
        if not left:
            raise KeyboardInterrupt

    return sink


def rewrite(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the exported points as another run of embed might have."""
    path = folder / "chunks.parquet"
    table = pq.read_table(path)
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), path)
    journal = read_export_journal(folder)
    journal["parquet"]["sha256"] = file_sha256(path)
    write_export_journal(folder, journal)


def with_texts(texts: list[str]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        field = table.schema.field("text")
        column = table.schema.get_field_index("text")
        return table.slice(0, len(texts)).set_column(column, field, pa.array(texts, field.type))

    return change


# what arrives


def test_every_collection_is_uploaded_and_counted_by_the_server(
    out: Path, server: QdrantServer, send: Send, seen: list[Event]
) -> None:
    reports = send(out)
    assert [(report.collection, report.counted, report.points) for report in reports] == [
        ("docs", CHUNKS, CHUNKS),
        ("notes", 20, 20),
    ]
    assert {name: len(stored.points) for name, stored in server.collections.items()} == {
        DOCS: CHUNKS,
        "notes__tiny-bert": 20,
    }
    assert [event.counted for event in of_kind(UploadFinished, seen)] == [CHUNKS, 20]
    assert sum(event.points for event in of_kind(BatchUploaded, seen)) == CHUNKS + 20


def test_the_collection_is_created_with_our_dims_and_cosine(docs: Path, server: QdrantServer, send: Send) -> None:
    send(docs)
    assert server.collections[DOCS].vectors == models.VectorParams(size=DIM, distance=models.Distance.COSINE)


def test_points_are_sent_so_that_the_server_answers_when_they_are_applied(
    docs: Path, server: QdrantServer, send: Send
) -> None:
    send(docs)
    paths = [request.path for request in server.requests if request.method == "PUT" and "/points" in request.path]
    assert paths
    assert all("wait=true" in path for path in paths)


def test_a_second_upload_overwrites_and_doubles_nothing(docs: Path, server: QdrantServer, send: Send) -> None:
    send(docs)
    (report,) = send(docs)
    assert (report.counted, report.resumed_at) == (CHUNKS, 0)
    assert len(server.collections[DOCS].points) == CHUNKS


def test_the_payload_has_the_full_text_the_record_unchanged_and_the_chunk_id(
    docs: Path, server: QdrantServer, send: Send
) -> None:
    send(docs)
    for record in make_records(CHUNKS):
        chunk_id = record["metadata"]["chunk_id"]
        payload = server.collections[DOCS].points[point_id("docs", chunk_id)].payload
        assert payload == {**record, "chunk_id": chunk_id, "collection": "docs", "file": "a_chunks.json"}


def test_the_vectors_arrive_as_the_float32_that_were_exported(docs: Path, server: QdrantServer, send: Send) -> None:
    send(docs)
    table = pq.read_table(docs / "chunks.parquet", columns=["point_id", "vector"])
    for point, vector in zip(table["point_id"].to_pylist(), table["vector"].to_pylist(), strict=True):
        assert server.collections[DOCS].points[point].vector == vector


def test_point_ids_are_version_5_uuids_that_depend_on_collection_and_chunk_alone() -> None:
    assert uuid.UUID(point_id("docs", "chunk-1")).version == 5
    assert point_id("docs", "chunk-1") == "638478ff-5f30-538a-a733-2f9023692d81"
    assert len({point_id("docs", "1"), point_id("docs", "2"), point_id("notes", "1"), point_id("doc", "s1")}) == 4


# what passes


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "trouble",
    [{"status": 500}, {"status": 503}, {"status": 429}, {"drop": True}, {"apply_then_drop": True}],
    ids=["500", "503", "429", "dropped", "applied-then-dropped"],
)
def test_trouble_that_passes_is_survived(
    docs: Path, server: QdrantServer, send: Send, seen: list[Event], call: str, trouble: dict[str, Any]
) -> None:
    method, path = CALLS[call]
    server.faults.append(Fault(method, path, times=2 if "status" in trouble else 1, **trouble))
    (report,) = send(docs)
    assert report.counted == len(server.collections[DOCS].points) == CHUNKS
    assert [event.attempt for event in of_kind(Retried, seen)][:1] == [1]


def test_retry_after_is_honoured(
    docs: Path, server: QdrantServer, send: Send, seen: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("ultimate_embedder.retry.time", clock)
    server.faults.append(Fault("PUT", "/points", status=429, retry_after="1"))
    (report,) = send(docs)
    assert clock.slept_s == [1]
    assert [(event.wait_seconds, event.reason) for event in of_kind(Retried, seen)] == [(1, "429, too many requests")]
    assert report.counted == CHUNKS


def test_retry_after_may_be_a_date(docs: Path, server: QdrantServer, send: Send) -> None:
    server.faults.append(Fault("PUT", "/points", status=429, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"))
    (report,) = send(docs)
    assert report.counted == CHUNKS


def test_a_retry_after_beyond_the_total_time_fails_at_once(docs: Path, server: QdrantServer, send: Send) -> None:
    server.faults.append(Fault("PUT", "/points", status=429, retry_after="3600"))
    with pytest.raises(UploadError, match=f"cannot send points on {server.url}"):
        send(docs)


def test_a_server_that_does_not_answer_in_time_is_asked_again(
    docs: Path, server: QdrantServer, send: Send, seen: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ultimate_embedder.export.server.connection.TIMEOUT_S", 1)
    server.faults.append(Fault("PUT", "/points", delay_s=1.3))
    (report,) = send(docs)
    assert report.counted == CHUNKS
    assert [event.reason for event in of_kind(Retried, seen)] == ["ReadTimeout: timed out"]


# what does not pass


def test_trouble_that_outlasts_the_policy_names_the_server_and_the_reason(
    docs: Path, server: QdrantServer, send: Send, seen: list[Event]
) -> None:
    server.faults.append(Fault("PUT", "/points", status=503, times=99))
    with pytest.raises(UploadError, match=f"cannot send points on {server.url}: 503 Service Unavailable"):
        send(docs)
    assert sorted({event.attempt for event in of_kind(Retried, seen)}) == [1, 2, 3]


def test_a_refused_request_is_not_tried_again(docs: Path, server: QdrantServer, send: Send, seen: list[Event]) -> None:
    server.faults.append(Fault("PUT", "/points", status=400))
    with pytest.raises(UploadError, match=r"400 Bad Request .*a fault on purpose"):
        send(docs)
    assert not of_kind(Retried, seen)


def test_something_that_is_not_qdrant_is_named_and_not_a_crash(docs: Path, server: QdrantServer, send: Send) -> None:
    server.faults.append(Fault("GET", "/exists", status=200, body=b"<html>Welcome!</html>", times=99))
    with pytest.raises(UploadError, match=server.url):
        send(docs)


def test_points_that_the_server_acknowledged_and_lost_are_missed_and_sent_anew(
    docs: Path, server: QdrantServer, send: Send
) -> None:
    server.faults.append(Fault("PUT", "/points", acknowledge_only=True, skip=1))
    with pytest.raises(UploadError, match=f"{DOCS} holds 172 of the 300 points of docs after the upload"):
        send(docs, batch_size=128, parallel=1)
    (report,) = send(docs)
    assert (report.counted, report.resumed_at) == (CHUNKS, 0)


def test_points_that_the_server_acknowledged_and_did_not_replace_are_an_error(
    docs: Path, server: QdrantServer, send: Send
) -> None:
    send(docs)
    rewrite(docs, with_texts([f"changed {number}" for number in range(CHUNKS)]))
    server.faults.append(Fault("PUT", "/points", acknowledge_only=True, times=100))
    with pytest.raises(UploadError, match=f"{DOCS} on .* does not have point .* as it was sent"):
        send(docs)
    server.faults.clear()
    (report,) = send(docs)
    assert (report.counted, report.resumed_at) == (CHUNKS, 0)


def test_points_that_somebody_deleted_or_changed_are_sent_anew(docs: Path, server: QdrantServer, send: Send) -> None:
    send(docs)
    for point in server.sent_ids()[0][:5]:
        del server.collections[DOCS].points[point]
    (report,) = send(docs)
    assert (report.counted, report.resumed_at) == (CHUNKS, 0)
    assert len(server.collections[DOCS].points) == CHUNKS


def test_texts_are_cut_into_requests_that_qdrant_takes(docs: Path, server: QdrantServer, send: Send) -> None:
    rewrite(docs, with_texts([str(number) + "x" * (1 << 20) for number in range(40)]))
    (report,) = send(docs)
    assert report.counted == 40


# interruptions


@pytest.mark.usefixtures("small_batches")
def test_an_interrupted_upload_is_resumed(docs: Path, server: QdrantServer, send: Send, seen: list[Event]) -> None:
    with pytest.raises(KeyboardInterrupt):
        send(docs, emit=interrupt_after(batches=3))
    before = len(server.sent_ids())
    (report,) = send(docs)
    assert (report.resumed_at, report.counted) == (30, CHUNKS)
    assert len(server.sent_ids()[before:]) == 27
    assert len(server.collections[DOCS].points) == CHUNKS
    (started,) = of_kind(UploadStarted, seen)
    assert (started.points, started.uploaded, started.created) == (CHUNKS, 30, False)


def test_a_points_file_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "chunks.parquet")
    with pytest.raises(UploadError, match=r"chunks\.parquet cannot be read \(it is not a file\)"):
        upload(tmp_path, "http://127.0.0.1:1", lambda event: None)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("damage", [pytest.param(each, id=words) for words, each in damages().items()])
def test_with_a_damaged_journal_an_upload_starts_over_and_says_so(
    docs: Path, send: Send, seen: list[Event], damage: Damage
) -> None:
    with pytest.raises(KeyboardInterrupt):
        send(docs, emit=interrupt_after(2))
    before, path = (docs / "upload.json").read_bytes(), docs / "upload.json"
    damage(path)
    same, linked = path.is_file() and path.read_bytes().strip() == before.strip(), path.is_symlink()
    (report,) = send(docs)
    assert (report.counted, report.resumed_at > 0) == (report.points, same)
    told = [event.message for event in of_kind(Warned, seen)]
    assert len(told) == (0 if same or linked else 1)
    assert all(message.endswith("the next upload sends all points again") for message in told)
    assert isinstance(upload_state.read_uploads(docs), tuple)


@pytest.mark.usefixtures("small_batches")
def test_a_refused_batch_is_where_the_next_upload_begins(docs: Path, server: QdrantServer, send: Send) -> None:
    server.faults.append(Fault("PUT", "/points", status=400, skip=2))
    with pytest.raises(UploadError):
        send(docs)
    refused, before = server.sent_ids()[2], len(server.sent_ids())
    (report,) = send(docs)
    assert (report.resumed_at, report.counted) == (20, CHUNKS)
    assert server.sent_ids()[before] == refused
    assert len(server.collections[DOCS].points) == CHUNKS


@pytest.mark.usefixtures("small_batches")
def test_a_batch_that_was_sent_in_part_is_sent_again(docs: Path, server: QdrantServer, send: Send) -> None:
    with pytest.raises(KeyboardInterrupt):
        send(docs, emit=interrupt_after(batches=3))
    (report,) = send(docs, batch_size=7)  # 30 points are four batches and a part
    assert report.counted == CHUNKS


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("wipe", ["collection", "points"])
def test_a_server_that_was_wiped_gets_everything(docs: Path, server: QdrantServer, send: Send, wipe: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        send(docs, emit=interrupt_after(batches=3))
    server.collections[DOCS].points.clear()
    if wipe == "collection":
        del server.collections[DOCS]
    (report,) = send(docs)
    assert (report.resumed_at, report.counted) == (0, CHUNKS)


@pytest.mark.usefixtures("small_batches")
def test_changed_exports_are_sent_from_the_beginning(docs: Path, server: QdrantServer, send: Send) -> None:
    with pytest.raises(KeyboardInterrupt):
        send(docs, emit=interrupt_after(batches=3))
    rewrite(docs, with_texts([f"changed {number}" for number in range(CHUNKS)]))
    (report,) = send(docs)
    assert (report.resumed_at, report.counted) == (0, CHUNKS)
    payloads = [point.payload for point in server.collections[DOCS].points.values()]
    assert all(payload and payload["text"].startswith("changed ") for payload in payloads)


@pytest.mark.usefixtures("small_batches")
def test_another_server_or_another_name_gets_everything(docs: Path, server: QdrantServer, send: Send) -> None:
    with pytest.raises(KeyboardInterrupt):
        send(docs, emit=interrupt_after(batches=3))
    with QdrantServer() as other:
        assert [report.resumed_at for report in upload(docs, other.url, lambda event: None)] == [0]
    assert [report.resumed_at for report in send(docs, collection="elsewhere")] == [0]
    assert len(server.collections["elsewhere"].points) == CHUNKS


# collections that are not ours


def test_a_collection_with_other_dims_is_refused(docs: Path, server: QdrantServer, send: Send) -> None:
    server.collections[DOCS] = StoredCollection(models.VectorParams(size=8, distance=models.Distance.COSINE))
    with pytest.raises(UploadError) as caught:
        send(docs)
    assert str(caught.value) == (
        f"collection {DOCS} on {server.url} has vectors with 8 dimensions, but ours have 64. "
        "Give another name with --collection, or delete that collection with --recreate."
    )
    assert not server.sent_ids()


def test_a_collection_with_named_vectors_is_refused(docs: Path, server: QdrantServer, send: Send) -> None:
    params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    server.collections[DOCS] = StoredCollection({"dense": params})
    with pytest.raises(UploadError, match=f"{DOCS} on .* has named vectors, but ours are unnamed with 64 dimensions"):
        send(docs)


def test_points_of_others_in_the_collection_are_left_alone_and_not_counted(
    docs: Path, server: QdrantServer, send: Send
) -> None:
    send(docs)
    stored = server.collections[DOCS]
    stranger = str(uuid.uuid4())
    stored.points[stranger] = models.Record(id=stranger)
    (report,) = send(docs)
    assert report.counted == CHUNKS
    assert len(stored.points) == CHUNKS + 1


# what is uploaded


def test_one_target_for_several_collections_is_refused(out: Path, server: QdrantServer, send: Send) -> None:
    with pytest.raises(UploadError) as caught:
        send(out, collection="mine")
    assert str(caught.value) == (
        f"{out} has several collections (docs, notes), but --collection names one target. "
        f"Upload them one by one: {out / 'docs'}"
    )
    assert not server.requests


def test_one_collection_of_several_may_have_a_target_of_its_own(out: Path, server: QdrantServer, send: Send) -> None:
    (report,) = send(out / "notes", collection="mine, with a # and a ?")
    assert (report.collection, report.counted) == ("notes", 20)
    assert list(server.collections) == ["mine, with a # and a ?"]


def test_a_folder_without_points_says_how_to_make_them(tmp_path: Path, send: Send) -> None:
    with pytest.raises(UploadError, match=r"no chunks.parquet in .* Run embed again with --export parquet"):
        send(tmp_path)


def test_a_parquet_that_embed_did_not_write_is_named_and_not_a_crash(tmp_path: Path, send: Send) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "chunks.parquet")
    with pytest.raises(UploadError, match=r"chunks\.parquet"):
        send(tmp_path)


# the key


def test_a_missing_key_is_told_with_the_option_that_gives_it(docs: Path, seen: list[Event]) -> None:
    with (
        QdrantServer(api_key="secret") as server,
        pytest.raises(UploadError, match=r"401 Unauthorized\. Pass the API key with --api-key-env VAR"),
    ):
        upload(docs, server.url, seen.append, policy=IMPATIENT)
    assert not of_kind(Retried, seen)


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_the_right_key_opens(docs: Path) -> None:
    with QdrantServer(api_key="secret") as server:
        (report,) = upload(docs, server.url, lambda event: None, api_key="secret")
    assert report.counted == CHUNKS


# the command line


def test_the_command_prints_what_the_server_counted_and_exits_0(
    out: Path, server: QdrantServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upload", str(out), "--url", server.url]) == 0
    told = capsys.readouterr()
    assert told.out == f"docs: 300 of 300 points in {DOCS}\nnotes: 20 of 20 points in notes__tiny-bert\n"
    assert f"docs → {DOCS}: 0 of 300" in told.err


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_the_command_takes_the_key_from_the_environment_and_never_shows_it(
    docs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_QDRANT_KEY", "secret-5a17")
    with QdrantServer(api_key="secret-5a17") as server:
        assert main(["upload", str(docs), "--url", server.url, "--api-key-env", "MY_QDRANT_KEY"]) == 0
    told = capsys.readouterr()
    assert "secret-5a17" not in told.out + told.err


def test_an_unset_key_variable_exits_2(
    docs: Path, server: QdrantServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MY_QDRANT_KEY", raising=False)
    assert main(["upload", str(docs), "--url", server.url, "--api-key-env", "MY_QDRANT_KEY"]) == 2
    assert capsys.readouterr().err == "error: --api-key-env MY_QDRANT_KEY: that variable is not set.\n"
    assert not server.requests


def test_a_folder_that_is_not_there_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upload", str(tmp_path / "nowhere"), "--url", "http://127.0.0.1:1"]) == 2
    assert "nowhere is not a folder" in capsys.readouterr().err


@pytest.mark.usefixtures("impatient_cli")
def test_a_dead_server_exits_1_after_retries(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with QdrantServer() as closed:
        pass
    assert main(["upload", str(docs), "--url", closed.url]) == 1
    told = capsys.readouterr().err
    assert told.count("retrying in") == min(IMPATIENT.tries, UNREACHABLE_TRIES) - 1
    assert f"error: cannot look up the collection on {closed.url}: ConnectError" in told
    assert "Is Qdrant running there?" in told


@pytest.mark.usefixtures("impatient_cli")
@pytest.mark.parametrize("url", ["not a url", "ftp://localhost", "http://localhost:99999"])
def test_a_url_that_makes_no_sense_is_an_error_in_words(
    docs: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upload", str(docs), "--url", url]) in (1, 2)
    assert url in capsys.readouterr().err


def test_an_interrupted_command_exits_130_and_says_how_to_resume(
    docs: Path, server: QdrantServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def press_ctrl_c(path: Path) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(UPLOAD_MODULE, "file_sha256", press_ctrl_c)
    assert main(["upload", str(docs), "--url", server.url, "--quiet"]) == 130
    assert capsys.readouterr().err == "interrupted; run the same command again to resume\n"
