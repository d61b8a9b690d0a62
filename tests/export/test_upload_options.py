"""Options of `upload`, each with its effect on the server."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from qdrant_client import models

from tests.support.points import DIM, make_points
from tests.support.qdrant_server import Fault, QdrantServer, StoredCollection
from tests.support.uploads import upload
from ultimate_embedder.cli import main
from ultimate_embedder.errors import UploadError, UsageError
from ultimate_embedder.events import Event, ServerChanged
from ultimate_embedder.export import UploadReport, make_upload_config, point_id, read_uploads, write_exports
from ultimate_embedder.retry import RetryPolicy

TARGET = "docs__model"
POINTS = 50
IMPATIENT = RetryPolicy(tries=4, first_wait_s=0.01, longest_wait_s=0.02, total_s=5.0)
WRITES = ("PUT", "PATCH", "DELETE")

Send = Callable[..., UploadReport]


def make(folder: Path, numbers: Sequence[int] = range(POINTS), word: str = "text") -> Path:
    """A collection called docs with exported points; gives its folder."""
    records = [
        {"text": f"{word} {number}", "id": str(number), "metadata": {"page": number, "topic": "a"}}
        for number in numbers
    ]
    write_exports(make_points(folder, records), folder / "docs", ("parquet",), lambda event: None)
    return folder / "docs"


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The points of all tests here; what an upload records beside them is deleted before each test."""
    return make(tmp_path_factory.mktemp("docs"))


@pytest.fixture(scope="module")
def fewer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same collection, but ten chunks are gone and five are new."""
    return make(tmp_path_factory.mktemp("fewer"), range(10, POINTS + 5))


@pytest.fixture(autouse=True)
def _forget(docs: Path, fewer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (docs, fewer):
        (folder / "upload.json").unlink(missing_ok=True)
    for variable in ("QDRANT_URL", "QDRANT_API_KEY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with QdrantServer() as running:
        yield running


@pytest.fixture
def send(server: QdrantServer, seen: list[Event]) -> Send:
    def call(folder: Path, **options: Any) -> UploadReport:
        (report,) = upload(folder, server.url, seen.append, IMPATIENT, **options)
        return report

    return call


def recorded(folder: Path) -> dict[str, str | None]:
    """The alias of each collection that was uploaded."""
    uploads = read_uploads(folder)
    assert isinstance(uploads, tuple)
    return {each.target: each.alias for each in uploads if each.finished}


def said(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, ServerChanged)]


def ids(numbers: Sequence[int]) -> set[str]:
    return {point_id("docs", str(number)) for number in numbers}


def config_of(server: QdrantServer, target: str = TARGET) -> dict[str, Any]:
    found: dict[str, Any] = server.collections[target].describe()["config"]
    return found


def writes(server: QdrantServer) -> list[str]:
    """Requests that change something."""
    return [
        f"{each.method} {each.path}"
        for each in server.requests
        if each.method in WRITES or "delete" in each.path or each.path == "/collections/aliases"
    ]


# -- speed


@pytest.mark.parametrize(("batch_size", "requests"), [(7, 8), (50, 1), (1000, 1)])
def test_batch_size_is_the_number_of_points_of_a_request(
    docs: Path, server: QdrantServer, send: Send, batch_size: int, requests: int
) -> None:
    assert send(docs, batch_size=batch_size).counted == POINTS
    assert sorted(map(len, server.sent_ids()), reverse=True)[0] == min(batch_size, POINTS)
    assert len(server.sent_ids()) == requests


class CountingServer(QdrantServer):
    """Answers an upsert only when as many as expected are waiting, or after a while."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.meeting = threading.Barrier(expected)
        self.met = 0

    def answer(self, request: Any) -> Any:
        """As Qdrant would, but together with others."""
        if request.method == "PUT" and "/points" in request.path and not self.met:
            self.meeting.wait(timeout=20)
            self.met = 1
        return super().answer(request)


def test_parallel_requests_are_in_flight_at_the_same_time(docs: Path) -> None:
    with CountingServer(expected=3) as server:
        (report,) = upload(docs, server.url, policy=IMPATIENT, batch_size=10, parallel=3)
        assert isinstance(server, CountingServer)
        assert server.met
    assert report.counted == POINTS


@pytest.mark.parametrize(
    "trouble",
    [{"status": 503}, {"status": 429}, {"drop": True}, {"apply_then_drop": True}, {"delay_s": 0.3}],
    ids=["503", "429", "dropped", "applied-then-dropped", "slow"],
)
def test_several_senders_survive_a_server_that_fails_some_requests(
    docs: Path, server: QdrantServer, send: Send, trouble: dict[str, Any]
) -> None:
    server.faults += [Fault("PUT", "/points", skip=skip, **trouble) for skip in (0, 2, 5)]
    assert send(docs, batch_size=5, parallel=4).counted == POINTS
    assert set(server.collections[TARGET].points) == ids(range(POINTS))


def test_after_a_failure_the_upload_resumes_where_all_before_was_stored(
    docs: Path, server: QdrantServer, send: Send
) -> None:
    server.faults.append(Fault("PUT", "/points", status=400, skip=3))
    with pytest.raises(UploadError, match="400 Bad Request"):
        send(docs, batch_size=5, parallel=4)
    report = send(docs, batch_size=5, parallel=4)
    # which request is the fourth is a matter of luck: a slow sender is overtaken by others
    assert report.resumed_at in range(0, POINTS, 5)
    assert report.counted == len(server.collections[TARGET].points) == POINTS


# -- what a new collection looks like


def test_a_collection_is_created_as_asked_for(docs: Path, server: QdrantServer, send: Send) -> None:
    send(docs, on_disk=True, hnsw="m=32,ef_construct=200", shards=3)
    config = config_of(server)
    assert (config["hnsw_config"]["m"], config["hnsw_config"]["ef_construct"]) == (32, 200)
    assert config["params"]["shard_number"] == 3
    assert config["params"]["vectors"]["on_disk"] is True
    assert config["params"]["on_disk_payload"] is True


@pytest.mark.parametrize("method", ["scalar", "product", "binary", "turbo"])
def test_quantization_is_in_the_settings_of_the_collection(
    docs: Path, server: QdrantServer, send: Send, method: str
) -> None:
    if method == "turbo" and not hasattr(models, "TurboQuantization"):
        pytest.skip("this qdrant-client is older than turbo")
    send(docs, quantization=method)
    assert list(config_of(server)["quantization_config"]) == [method]


def test_turbo_is_refused_by_an_old_server_before_anything_is_changed(docs: Path, seen: list[Event]) -> None:
    with QdrantServer(has_metadata=False) as old:
        with pytest.raises(UploadError, match=r"--quantization turbo needs Qdrant 1\.18 or later, and .* is 1\.15"):
            upload(docs, old.url, policy=IMPATIENT, quantization="turbo", recreate=True)
        assert not writes(old)


def test_a_server_that_ignores_an_option_is_told(docs: Path, server: QdrantServer, send: Send) -> None:
    server.faults.append(Fault("PUT", f"/collections/{TARGET}$", acknowledge_only=True))
    server.collections["other"] = StoredCollection(models.VectorParams(size=DIM, distance=models.Distance.COSINE))
    server.service.aliases[TARGET] = "other"
    server.faults.append(Fault("GET", "/exists", status=200, body=b'{"result": {"exists": false}}'))
    with pytest.raises(UploadError, match="does not follow --quantization binary: it has none"):
        send(docs, quantization="binary")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"quantization": "binary"}, "--quantization binary: it has none"),
        ({"hnsw": {"m": 64}}, "--hnsw m=64: it has 16"),
        ({"shards": 2}, "--shards 2: it has 1"),
        ({"on_disk": True}, "--on-disk: its vectors are in memory"),
    ],
)
def test_an_existing_collection_that_does_not_follow_an_option_is_left_alone(
    docs: Path, server: QdrantServer, send: Send, options: dict[str, Any], problem: str
) -> None:
    send(docs)
    before = len(server.sent_ids())
    with pytest.raises(UploadError, match=problem):
        send(docs, **options)
    assert len(server.sent_ids()) == before
    assert send(docs, recreate=True, **options).counted == POINTS


def test_payload_indexes_are_created_before_the_points(docs: Path, server: QdrantServer, send: Send) -> None:
    send(docs, payload_index=["metadata.page:integer", "metadata.topic:keyword"])
    assert server.collections[TARGET].indexes == {"metadata.page": "integer", "metadata.topic": "keyword"}
    order = [each.path for each in server.requests if each.method == "PUT"]
    assert [path.partition("?")[0].rpartition("/")[2] for path in order][1:4] == ["index", "index", "points"]
    send(docs, payload_index="metadata.page:integer")  # is there already
    with pytest.raises(UploadError, match=r"has an index on metadata.page for integer, and .* asks for keyword"):
        send(docs, payload_index="metadata.page:keyword")


# -- indexing


def threshold(server: QdrantServer) -> Any:
    return config_of(server)["optimizer_config"].get("indexing_threshold")


def test_indexing_is_off_while_points_are_sent_and_on_afterwards(
    docs: Path, server: QdrantServer, seen: list[Event]
) -> None:
    during = []

    def look(event: Event) -> None:
        if type(event).__name__ == "BatchUploaded":
            during.append(threshold(server))

    upload(docs, server.url, look, IMPATIENT)
    assert set(during) == {0}
    assert threshold(server) == 20_000


def test_an_interrupted_upload_leaves_indexing_off_and_the_next_one_switches_it_on(
    docs: Path, server: QdrantServer, send: Send
) -> None:
    server.faults.append(Fault("PUT", "/points", status=400, skip=1))
    with pytest.raises(UploadError):
        send(docs, batch_size=10, parallel=1)
    assert threshold(server) == 0
    (docs / "upload.json").unlink()  # as if from another machine
    send(docs)
    assert threshold(server) == 20_000


def test_a_setting_of_the_server_comes_back(docs: Path, server: QdrantServer, send: Send) -> None:
    server.faults.append(Fault("PUT", "/points", status=400))
    with pytest.raises(UploadError):
        send(docs)
    assert server.collections[TARGET].metadata is not None
    server.collections[TARGET].metadata["ultimate_embedder_indexing"]["threshold_kb"] = 777
    send(docs)
    assert threshold(server) == 777


def test_indexing_of_an_existing_collection_is_left_alone(docs: Path, server: QdrantServer, send: Send) -> None:
    send(docs)
    server.collections[TARGET].settings["optimizers_config"] = {"indexing_threshold": 5}
    send(docs)
    assert threshold(server) == 5


def test_indexing_stays_on_where_the_server_cannot_note_that_it_is_off(docs: Path) -> None:
    with QdrantServer(has_metadata=False) as server:
        upload(docs, server.url, policy=IMPATIENT)
        assert threshold(server) is None


# -- what is there already


def test_recreate_says_what_it_deletes(docs: Path, server: QdrantServer, send: Send, seen: list[Event]) -> None:
    send(docs)
    stranger = str(uuid.uuid4())
    server.collections[TARGET].points[stranger] = models.Record(id=stranger, vector=[1.0] * DIM)
    report = send(docs, recreate=True)
    assert (report.recreated, report.counted, report.created) == (POINTS + 1, POINTS, True)
    assert set(server.collections[TARGET].points) == ids(range(POINTS))
    assert f"deleted the collection {TARGET} on {server.url} ({POINTS + 1} points), to create it anew" in said(seen)


def test_an_interrupted_recreate_resumes_and_deletes_nothing_again(
    docs: Path, server: QdrantServer, send: Send
) -> None:
    send(docs)
    server.faults.append(Fault("PUT", "/points", status=400, skip=2))
    with pytest.raises(UploadError):
        send(docs, recreate=True, batch_size=10, parallel=1)
    report = send(docs, recreate=True, batch_size=10)
    assert (report.resumed_at, report.recreated, report.counted) == (20, None, POINTS)
    assert send(docs, recreate=True).recreated == POINTS


def test_recreate_of_an_alias_is_refused(docs: Path, server: QdrantServer, send: Send) -> None:
    send(docs)
    server.service.aliases["live"] = TARGET
    with pytest.raises(UploadError, match=f"live on .* is an alias of {TARGET}. Give --alias live to fill a new"):
        send(docs, collection="live", recreate=True)
    assert len(server.collections[TARGET].points) == POINTS


def test_points_of_removed_chunks_are_counted_and_deleted_on_request(
    docs: Path, fewer: Path, server: QdrantServer, send: Send, seen: list[Event]
) -> None:
    assert send(docs).removed == 0
    report = send(fewer)
    assert (report.removed, report.deleted) == (10, 0)
    assert f"10 points of removed chunks are left in {TARGET}. --delete-removed deletes them" in said(seen)
    assert len(server.collections[TARGET].points) == POINTS + 5
    report = send(fewer, delete_removed=True)
    assert (report.removed, report.deleted) == (10, 10)
    assert set(server.collections[TARGET].points) == ids(range(10, POINTS + 5))


def test_points_of_others_are_never_taken_for_removed_ones(
    docs: Path, fewer: Path, server: QdrantServer, send: Send
) -> None:
    send(docs)
    others: dict[Any, dict[str, Any]] = {
        str(uuid.uuid4()): {"chunk_id": "1", "collection": "docs"},
        point_id("notes", "1"): {"chunk_id": "1", "collection": "notes"},
        7: {"chunk_id": "1"},
        str(uuid.uuid4()): {"chunk_id": ["1"]},
        str(uuid.uuid4()): {},
    }
    for other, payload in others.items():
        server.collections[TARGET].points[other] = models.Record(id=other, vector=[1.0] * DIM, payload=payload)
    assert send(fewer, delete_removed=True).deleted == 10
    assert set(server.collections[TARGET].points) == ids(range(10, POINTS + 5)) | set(others)


@pytest.mark.parametrize(
    "page",
    [
        {"points": [], "next_page_offset": "a"},
        {"points": [{"id": 1}] * 10, "next_page_offset": "a"},
        {"points": [{"id": 1, "payload": 5}], "next_page_offset": []},
        {"points": None},
    ],
)
def test_a_list_of_points_that_does_not_end_or_is_none_is_an_error_in_words(
    docs: Path, fewer: Path, server: QdrantServer, send: Send, page: Any
) -> None:
    send(docs)
    body = json.dumps({"result": page}).encode()
    server.faults.append(Fault("POST", "/points/scroll", status=200, body=body, times=10_000))
    with pytest.raises(UploadError, match=r"cannot list points .* not one of Qdrant's"):
        send(fewer)


# -- aliases


def test_an_alias_points_to_a_new_collection_and_the_old_one_is_kept(
    docs: Path, fewer: Path, server: QdrantServer, send: Send, seen: list[Event]
) -> None:
    first = send(docs, alias="live")
    assert server.service.aliases == {"live": first.target}
    second = send(fewer, alias="live")
    assert server.service.aliases == {"live": second.target}
    assert (second.replaced, second.replaced_deleted) == (first.target, False)
    assert set(server.collections) == {first.target, second.target}
    assert said(seen)[-1] == (
        f"alias live points to {second.target} now, and no longer to {first.target}, which was kept"
    )


def test_the_old_collection_is_deleted_on_request(docs: Path, fewer: Path, server: QdrantServer, send: Send) -> None:
    send(docs, alias="live")
    report = send(fewer, alias="live", delete_old=True)
    assert report.replaced_deleted
    assert list(server.collections) == [report.target]


def test_what_is_recorded_follows_the_alias(docs: Path, server: QdrantServer, send: Send) -> None:
    first, second = send(docs, alias="live"), send(docs, alias="live", hnsw="m=8")
    assert recorded(docs) == {first.target: None, second.target: "live"}
    third = send(docs, alias="live", hnsw="m=9", delete_old=True)
    assert recorded(docs) == {first.target: None, third.target: "live"}


def test_an_old_collection_with_another_alias_is_kept(
    docs: Path, fewer: Path, server: QdrantServer, send: Send, seen: list[Event]
) -> None:
    first = send(docs, alias="live")
    server.service.aliases["backup"] = first.target
    assert not send(fewer, alias="live", delete_old=True).replaced_deleted
    assert said(seen)[-1].endswith("which was kept: it has the alias backup")


def test_the_alias_is_switched_only_when_all_points_are_counted(
    docs: Path, fewer: Path, server: QdrantServer, send: Send
) -> None:
    first = send(docs, alias="live")
    server.faults.append(Fault("PUT", "/points", acknowledge_only=True))
    with pytest.raises(UploadError, match="after the upload"):
        send(fewer, alias="live")
    assert server.service.aliases == {"live": first.target}
    second = send(fewer, alias="live")
    assert server.service.aliases == {"live": second.target}
    assert len(server.collections) == 2  # the interrupted collection was completed


def test_the_same_points_again_go_to_the_same_collection(docs: Path, server: QdrantServer, send: Send) -> None:
    first = send(docs, alias="live")
    again = send(docs, alias="live")
    assert (again.target, again.replaced, again.created) == (first.target, None, False)
    other = send(docs, alias="live", hnsw="m=8")
    assert (other.target != first.target, other.replaced) == (True, first.target)


def test_an_alias_cannot_have_the_name_of_a_collection(docs: Path, server: QdrantServer, send: Send) -> None:
    send(docs)
    server.requests.clear()
    with pytest.raises(UploadError, match=f"has a collection called {TARGET}, so that an alias cannot have this name"):
        send(docs, alias=TARGET)
    assert not writes(server)


def test_an_alias_may_point_to_a_collection_of_a_given_name(docs: Path, server: QdrantServer, send: Send) -> None:
    send(docs, alias="live", collection="mine")
    assert server.service.aliases == {"live": "mine"}


# -- dry runs


def test_a_dry_run_of_a_new_collection_sends_nothing_that_writes(docs: Path, server: QdrantServer, send: Send) -> None:
    report = send(docs, dry_run=True, alias="live", payload_index="metadata.page:integer")
    assert (report.dry_run, report.created, report.points, report.counted) == (True, True, POINTS, 0)
    assert not writes(server)
    assert not (docs / "upload.json").exists()
    assert report.sent_bytes == send(docs).sent_bytes


def test_a_dry_run_counts_new_changed_and_removed_points(
    docs: Path, tmp_path: Path, server: QdrantServer, send: Send
) -> None:
    send(docs)
    other = tmp_path / "other"
    changed = [{"text": f"other {number}", "id": str(number), "metadata": {}} for number in range(20, 30)]
    kept = [
        {"text": f"text {number}", "id": str(number), "metadata": {"page": number, "topic": "a"}}
        for number in range(30, POINTS)
    ]
    new = [{"text": "new", "id": "new"}]
    write_exports(make_points(other, [*changed, *kept, *new]), other / "docs", ("parquet",), lambda event: None)
    server.requests.clear()
    report = send(other / "docs", dry_run=True)
    assert (report.points - report.counted, report.changed, report.removed) == (1, 10, 20)
    assert not writes(server)
    assert send(docs, dry_run=True).changed == 0
    again = send(docs, dry_run=True, recreate=True)
    assert (again.recreated, again.created) == (POINTS, True)
    assert len(server.collections[TARGET].points) == POINTS


def test_a_dry_run_is_told_in_a_sentence(docs: Path, server: QdrantServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upload", str(docs), "--url", server.url, "--dry-run", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(
        f"docs: {TARGET} would be created; 50 points new, 0 changed, 0 unchanged, 0 removed; 0.0 MB to send."
    )


# -- several at once


def test_two_uploads_into_one_collection_at_the_same_time_end_well(
    docs: Path, tmp_path: Path, server: QdrantServer
) -> None:
    more = make(tmp_path / "more", range(POINTS, 2 * POINTS))
    with ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(upload, each, server.url, policy=IMPATIENT, batch_size=5) for each in (docs, more)]
        counted = [each.result()[0].counted for each in sent]
    assert counted == [POINTS, POINTS]
    assert set(server.collections[TARGET].points) == ids(range(2 * POINTS))
    assert threshold(server) == 20_000


# -- the command line and the environment


def test_address_and_key_come_from_the_environment(
    docs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with QdrantServer(api_key="secret-77") as server:
        monkeypatch.setenv("QDRANT_URL", server.url)
        monkeypatch.setenv("QDRANT_API_KEY", "secret-77")
        with pytest.warns(UserWarning, match="insecure connection"):
            assert main(["upload", str(docs), "--json", "--quiet"]) == 0
    told = capsys.readouterr()
    (report,) = json.loads(told.out)
    assert (report["collection"], report["counted"], report["url"]) == ("docs", POINTS, server.url)
    assert "secret-77" not in told.out + told.err + (docs / "upload.json").read_text()


def test_the_python_function_takes_the_options_of_the_command(docs: Path, server: QdrantServer) -> None:
    import ultimate_embedder

    (report,) = ultimate_embedder.upload(docs, server.url, batch_size=5, quiet=True)
    assert report.counted == POINTS
    with pytest.raises(UsageError, match=r"upload\(\) has no option 'batchsize'. Did you mean batch_size\?"):
        ultimate_embedder.upload(docs, server.url, batchsize=5)  # type: ignore[call-arg]


def test_neither_key_nor_password_is_in_the_words_of_a_configuration(docs: Path) -> None:
    config = make_upload_config(docs, "http://me:hidden@localhost:1", api_key="secret")
    assert config.url == "http://localhost:1"
    assert not {"hidden", "secret"} & set(repr(config).replace("'", " ").split())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"batch_size": 0}, "--batch-size 0: must be at least 1."),
        ({"parallel": 0}, "--parallel 0: must be at least 1."),
        ({"parallel": "two"}, "--parallel 'two': not an integer."),
        ({"hnsw": "m"}, "--hnsw m: write m=16,ef_construct=100, for example"),
        ({"payload": "langchian"}, "--payload langchian: not one of plain, langchain, llama-index, haystack. Did you"),
        ({"shards": 0}, "--shards 0: must be at least 1."),
        ({"quantization": "scaler"}, "--quantization scaler: not one of scalar, product, binary, turbo. Did you mean"),
        ({"payload_index": "page"}, "--payload-index page: write FIELD:TYPE, such as metadata.page:integer."),
        ({"payload_index": "page:int"}, "--payload-index int: not one of keyword, integer"),
        ({"payload_index": ["a:text", "a:uuid"]}, "--payload-index: a is given twice. A field has one index."),
        ({"recreate": True, "alias": "x"}, "--recreate and --alias contradict each other"),
        ({"delete_old": True}, "--delete-old is about the collection that an alias pointed to."),
        ({"grpc_port": 70_000}, "--grpc-port 70000: a port is at most 65535."),
        ({"ca_cert": "nowhere.pem"}, "--ca-cert nowhere.pem is not a file."),
        ({"alias": "../x"}, "--alias '../x' begins with a dot. Choose another name."),
    ],
)
def test_an_option_that_makes_no_sense_is_told(docs: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_upload_config(docs, "http://localhost:1", **options)
    assert str(caught.value).startswith(problem)


def test_ids_that_are_kept_do_not_make_points_of_another_collection_ours(tmp_path: Path, server: QdrantServer) -> None:
    chunk_ids = [str(uuid.uuid4()) for _ in range(6)]

    def export(folder: Path, kept: Sequence[str]) -> Path:
        records = [{"text": f"text {each}", "id": each} for each in kept]
        write_exports(make_points(folder, records), folder / "docs", ("parquet",), lambda event: None)
        return folder / "docs"

    options: dict[str, Any] = {"payload": "langchain", "policy": IMPATIENT}
    upload(export(tmp_path / "all", chunk_ids[:4]), server.url, **options)
    for other, collection in ((chunk_ids[4], "notes"), (chunk_ids[5], "docs")):
        payload = {"chunk_id": other, "collection": collection}
        server.collections[TARGET].points[other] = models.Record(id=other, vector=[1.0] * DIM, payload=payload)
    (report,) = upload(export(tmp_path / "fewer", chunk_ids[:3]), server.url, delete_removed=True, **options)
    assert report.deleted == 2
    assert set(server.collections[TARGET].points) == {*chunk_ids[:3], chunk_ids[4]}
