"""Requests that are made to keep the server busy, to fill its answers, or to make it fail."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from tests.serve.conftest import running_server
from ultimate_embedder.serve import connection, guard


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"filter": ["number=1"] * 50_000}, "100 conditions"),
        ({"filter": {f"key{number}": 1 for number in range(50_000)}}, "100 conditions"),
        ({"filter": {"number": list(range(50_000))}}, "10,000 values"),
        ({"filter": "number=" + "1," * 50_000}, "10,000 values"),
        ({"filter": 5}, "not key=value"),
        ({"filter": {"number": (1 << 64) - 1}}, "64 bits"),
    ],
)
def test_a_filter_that_would_keep_the_engine_busy_is_refused(
    client: TestClient, fields: dict[str, Any], words: str
) -> None:
    answer = client.post("/search", json={"question": "fox", **fields})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_a_collection_that_is_named_again_and_again_is_opened_once(client: TestClient) -> None:
    answer = client.post("/search", json={"question": "fox", "collection": ["docs"] * 100_000})
    assert answer.status_code == 200
    assert answer.json()["collections"] == ["docs"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/embeddings", {"model": "a" * 1_000_000, "input": "fox"}),
        ("/v1/embeddings", {"b" * 1_000_000: 1}),
        ("/search", {"question": "fox", "collection": "c" * 1_000_000}),
        ("/search", {"question": "fox", "using": "d" * 1_000_000}),
    ],
)
def test_an_error_does_not_repeat_all_that_was_sent(client: TestClient, path: str, fields: dict[str, Any]) -> None:
    answer = client.post(path, json=fields)
    assert answer.status_code in (400, 404)
    assert len(answer.content) < 10_000


def _rest(connected: socket.socket) -> bytes:
    """All that is sent until the connection is closed."""
    return b"".join(iter(lambda: connected.recv(10_000), b""))


def test_connections_that_ask_nothing_do_not_keep_others_out(
    served_output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REQUEST_S", 0.3)
    with running_server(served_output) as address:
        place = urlsplit(address)
        half = f"GET /live/check HTTP/1.1\r\nHost: {place.netloc}\r\n".encode()
        with socket.create_connection(("127.0.0.1", place.port or 0), timeout=30) as slow:
            slow.sendall(half)
            assert _rest(slow) == b""  # closed
        with socket.create_connection(("127.0.0.1", place.port or 0), timeout=30) as slow:  # also after an answer
            slow.sendall(half + b"\r\n" + half)
            assert _rest(slow).count(b"HTTP/1.1 200") == 1


def test_a_body_of_a_byte_now_and_then_is_not_waited_for(served_output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SLOWEST_BODY_S", 0.3)
    with running_server(served_output) as address:
        place = urlsplit(address)
        with socket.create_connection(("127.0.0.1", place.port or 0), timeout=30) as slow:
            head = f"POST /search HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
            slow.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode())
            slow.settimeout(0.1)
            answer = b""
            for _ in range(300):
                slow.sendall(b"{")
                with contextlib.suppress(TimeoutError):
                    answer += slow.recv(10_000)
                if b"too_slow" in answer:
                    break
            assert answer.startswith(b"HTTP/1.1 408")
