"""Points over gRPC, servers with a certificate of their own, and uploads that are killed."""

from __future__ import annotations

import datetime
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdrant_client import models

from tests.support.points import make_points
from tests.support.qdrant.over_grpc import GrpcServer
from tests.support.qdrant_server import Fault, QdrantServer
from tests.support.uploads import upload
from ultimate_embedder.cli import main
from ultimate_embedder.errors import UploadError
from ultimate_embedder.events import Event, Retried
from ultimate_embedder.export import PointsFile, read_uploads, write_exports
from ultimate_embedder.retry import RetryPolicy

TARGET = "docs__model"
POINTS = 60
IMPATIENT = RetryPolicy(tries=4, first_wait_s=0.01, longest_wait_s=0.02, total_s=5.0)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return make(tmp_path)


def make(folder: Path, names: tuple[str, ...] = ("model",)) -> Path:
    records = [
        {"text": f"text {number}", "id": str(number), "metadata": {"page": number, "deep": [1.5, None, {"x": True}]}}
        for number in range(POINTS)
    ]
    write_exports(make_points(folder, records, models=names), folder / "docs", ("parquet",), lambda event: None)
    return folder / "docs"


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with QdrantServer() as running:
        yield running


@pytest.fixture
def over_grpc(server: QdrantServer) -> Iterator[GrpcServer]:
    with GrpcServer(server.service) as running:
        yield running


def stored(server: QdrantServer, target: str = TARGET) -> dict[Any, models.Record]:
    return dict(server.collections[target].points.items())


# -- gRPC


@pytest.mark.parametrize("names", [("model",), ("one", "two")])
def test_points_over_grpc_are_those_over_http(
    tmp_path: Path, server: QdrantServer, over_grpc: GrpcServer, names: tuple[str, ...]
) -> None:
    docs = make(tmp_path, names)
    upload(docs, server.url, policy=IMPATIENT, collection="http")
    assert not over_grpc.points.upserts
    (report,) = upload(docs, server.url, policy=IMPATIENT, collection="grpc", grpc_port=over_grpc.port, batch_size=25)
    assert sorted(over_grpc.points.upserts) == [10, 25, 25]
    assert report.counted == POINTS
    http, grpc = stored(server, "http"), stored(server, "grpc")
    assert http == grpc


@pytest.mark.parametrize("status", [503, 429])
def test_trouble_that_passes_is_survived_over_grpc(
    docs: Path, server: QdrantServer, over_grpc: GrpcServer, seen: list[Event], status: int
) -> None:
    over_grpc.points.faults += [status, 0, status]
    (report,) = upload(docs, server.url, seen.append, IMPATIENT, grpc_port=over_grpc.port, batch_size=10)
    assert report.counted == POINTS
    assert {event.what for event in seen if isinstance(event, Retried)} == {"send points over gRPC"}


def test_a_refusal_over_grpc_is_told(docs: Path, server: QdrantServer, over_grpc: GrpcServer) -> None:
    over_grpc.points.faults.append(400)
    with pytest.raises(UploadError, match=r"cannot send points over gRPC .* INVALID_ARGUMENT a fault on purpose"):
        upload(docs, server.url, policy=IMPATIENT, grpc_port=over_grpc.port)


def test_a_port_without_grpc_is_told(docs: Path, server: QdrantServer) -> None:
    with GrpcServer(server.service) as closed:
        port = closed.port
    with pytest.raises(UploadError, match=r"UNAVAILABLE. Check --grpc-port, or drop --grpc"):
        upload(docs, server.url, policy=IMPATIENT, grpc_port=port)


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_the_key_and_the_user_go_over_grpc_too(docs: Path) -> None:
    with QdrantServer(api_key="secret") as server, GrpcServer(server.service, "secret") as over_grpc:
        url = server.url.replace("//", "//me:hidden@")
        upload(docs, url, policy=IMPATIENT, grpc_port=over_grpc.port, api_key="secret")
        assert over_grpc.points.headers["authorization"].startswith("Basic ")
        over_grpc.points._api_key = "another"
        with pytest.raises(UploadError, match=r"UNAUTHENTICATED\. Pass the API key"):
            upload(docs, url, policy=IMPATIENT, grpc_port=over_grpc.port, api_key="secret")


def test_numbers_over_http_are_the_float32_of_the_file(docs: Path, server: QdrantServer) -> None:
    upload(docs, server.url, policy=IMPATIENT)
    ids, vectors, _ = next(PointsFile.open(docs / "chunks.parquet").batches(POINTS))
    found = stored(server)
    for row, point in enumerate(ids):
        unit = vectors[""][row] / np.linalg.norm(vectors[""][row])  # as Qdrant stores them for cosine distance
        assert np.allclose(np.array(found[point].vector), unit, atol=1e-6)


# -- certificates


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that no public authority has signed, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=folder,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    return folder / "cert.pem", folder / "key.pem"


def test_a_certificate_of_ones_own_is_trusted_when_given(docs: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with QdrantServer() as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        url = server.url.replace("http://", "https://")
        with pytest.raises(UploadError, match="CERTIFICATE_VERIFY_FAILED"):
            upload(docs, url, policy=IMPATIENT)
        assert upload(docs, url, policy=IMPATIENT, ca_cert=cert)[0].counted == POINTS
        pair = key.read_bytes(), cert.read_bytes()
        with GrpcServer(server.service, certificate=pair) as over_grpc:
            upload(docs, url, policy=IMPATIENT, ca_cert=cert, grpc_port=over_grpc.port, collection="grpc")
            assert over_grpc.points.upserts


def test_a_file_without_certificates_is_told(docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    options = ["--url", "https://127.0.0.1:1", "--ca-cert", str(tmp_path / "empty.pem")]
    assert main(["upload", str(docs), *options]) == 2
    assert "empty.pem has no certificates in PEM format" in capsys.readouterr().err


# -- interruptions of a real process


def begin(docs: Path, server: QdrantServer) -> subprocess.Popen[str]:
    """The command in a process of its own, when the server has taken some batches and keeps the next waiting."""
    server.faults.append(Fault("PUT", "/points", delay_s=30, times=9, skip=4))
    options = ["--url", server.url, "--batch-size", "5", "--parallel", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ultimate_embedder", "upload", str(docs), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    while len(server.sent_ids()) < 6:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


def test_a_killed_upload_is_resumed(docs: Path, server: QdrantServer) -> None:
    process = begin(docs, server)
    process.kill()
    process.communicate()
    server.faults.clear()
    (report,) = upload(docs, server.url, policy=IMPATIENT)
    assert report.counted == POINTS
    assert len(stored(server)) == POINTS


def test_ctrl_c_ends_an_upload_at_once_and_the_next_one_resumes(docs: Path, server: QdrantServer) -> None:
    process = begin(docs, server)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=25)  # before the server would answer
    assert process.returncode == 130
    assert told.endswith("interrupted; run the same command again to resume\n")
    (state,) = read_uploads(docs) or ()  # type: ignore[misc]
    assert state.finished is None
    assert state.points in (5, 10, 15, 20)  # of the four batches that were answered, those that it has noticed
    server.faults.clear()
    (report,) = upload(docs, server.url, policy=IMPATIENT)
    assert (report.resumed_at, report.counted) == (state.points, POINTS)


def test_status_shows_what_was_uploaded_where(
    tmp_path: Path, docs: Path, server: QdrantServer, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "summary.json").write_text("{}")
    upload(docs, server.url.replace("//", "//me:hidden@"), policy=IMPATIENT, alias="live")
    server.faults.append(Fault("PUT", "/points", status=400))
    with pytest.raises(UploadError):
        upload(docs, server.url, policy=IMPATIENT, collection="other")
    main(["status", str(tmp_path)])
    told = capsys.readouterr().out.splitlines()
    today = datetime.datetime.now(datetime.timezone.utc).date()
    assert told[-2].startswith(f"docs: {POINTS} points in {TARGET}__")
    assert f"(alias live) on {server.url}, complete since {today}" in told[-2]
    assert told[-1] == (f"docs: upload in other on {server.url}, interrupted after 0 points: run the same upload again")
    assert "hidden" not in (docs / "upload.json").read_text()
