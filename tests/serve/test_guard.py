"""Who may use the server: token, host, origin; and how much a request may send."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.serve.conftest import OpenClient
from ultimate_embedder.errors import UsageError
from ultimate_embedder.serve.address import host_name
from ultimate_embedder.serve.guard import LARGEST_BODY
from ultimate_embedder.serve.options import make_serve_config

TOKEN = "correct-horse-battery"


@pytest.fixture
def guarded(open_client: OpenClient, served_output: Path) -> TestClient:
    return open_client(served_output, token=TOKEN)


def test_every_path_needs_the_token(guarded: TestClient) -> None:
    for path in ("/", "/v1/models", "/static/serve.css", "/metrics", "/nothing"):
        answer = guarded.get(path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
    assert guarded.post("/v1/embeddings", json={}).status_code == 401


@pytest.mark.parametrize("given", ["", "Bearer", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer \xe9\xff", TOKEN])
def test_a_wrong_token_is_refused(guarded: TestClient, given: str) -> None:
    assert guarded.get("/v1/models", headers={b"Authorization": given.encode("latin-1")}).status_code == 401


def test_the_token_is_taken_from_the_header(guarded: TestClient) -> None:
    assert guarded.get("/v1/models", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200


def test_a_link_with_the_token_sets_a_cookie_that_is_not_the_token(guarded: TestClient) -> None:
    answer = guarded.get("/", params={"token": TOKEN}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert re.search("httponly", cookie, re.I)
    assert re.search("samesite=lax", cookie, re.I)
    assert guarded.get("/v1/models").status_code == 200
    guarded.cookies.clear()
    guarded.cookies.set("ultimate-embedder-8765", "0" * 64)
    assert guarded.get("/v1/models").status_code == 401
    assert guarded.get("/", params={"token": "wrong"}).status_code == 401
    assert guarded.get("/v1/models", params={"token": TOKEN}).status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "10.1.2.3", "[::1"]
)
def test_another_name_of_the_host_is_refused(client: TestClient, host: str) -> None:
    answer = client.get("/v1/models", headers={"Host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "unknown_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:8765", "my.proxy"])
def test_names_of_this_machine_and_those_that_were_allowed_pass(
    open_client: OpenClient, served_output: Path, host: str
) -> None:
    client = open_client(served_output, allow_host="My.Proxy")
    assert client.get("/v1/models", headers={"Host": host}).status_code == 200


def test_a_server_at_all_addresses_may_be_addressed_by_each_but_not_by_any_name(
    open_client: OpenClient, served_output: Path
) -> None:
    client = open_client(served_output, host="0.0.0.0", token=TOKEN)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert client.get("/v1/models", headers={"Host": "192.168.7.7:8765", **bearer}).status_code == 200
    assert client.get("/v1/models", headers={"Host": "evil.example", **bearer}).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "http://[broken"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ],
)
def test_pages_of_other_sites_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    for answer in (client.get("/v1/models", headers=headers), client.post("/v1/embeddings", json={}, headers=headers)):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "other_origin")
        assert "access-control-allow-origin" not in answer.headers


def test_links_from_elsewhere_and_the_own_page_pass(client: TestClient) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for headers in (link, {"Origin": "http://127.0.0.1:8765"}, {"Sec-Fetch-Site": "same-origin"}):
        assert client.get("/v1/models", headers=headers).status_code == 200


def test_a_giant_body_is_refused(client: TestClient) -> None:
    headers = {"Content-Type": "application/json"}

    def parts() -> Iterator[bytes]:
        yield from (b" " * (1 << 20) for _ in range(64))

    announced = client.post("/v1/embeddings", content=b" " * (LARGEST_BODY + 1), headers=headers)
    unannounced = client.post("/v1/embeddings", content=parts(), headers=headers)
    for answer in (announced, unannounced):
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd"]
)
def test_no_path_leads_out_of_the_files_of_the_page(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_an_error_of_the_server_tells_a_client_nothing_of_its_inside(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("of the inside")

    monkeypatch.setattr("ultimate_embedder.serve.encoders.read_catalogue", fail)
    answer = client.get("/v1/models")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "of the inside" not in answer.text
    assert "RuntimeError: of the inside" in caplog.text


def test_every_answer_has_the_headers_that_bind_a_browser(client: TestClient) -> None:
    for answer in (client.get("/v1/models"), client.get("/nothing"), client.get("/", headers={"Host": "evil"})):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_a_token_is_made_for_addresses_that_others_can_reach(
    served_output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make_serve_config(served_output).token is None
    first, second = (make_serve_config(served_output, host="0.0.0.0").token for _ in range(2))
    assert first
    assert len(first) >= 32
    assert first != second
    assert first not in repr(make_serve_config(served_output, host="0.0.0.0", token=first))
    monkeypatch.setenv("ULTIMATE_EMBEDDER_TOKEN", TOKEN)
    assert make_serve_config(served_output).token == TOKEN


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"token": "short"}, "at least 16 characters"),
        ({"token": "with a space in the middle"}, "without spaces"),
        ({"port": 65536}, "from 1 to 65535"),
        ({"host": "no.such.host.invalid"}, "is no address"),
        ({"host": ""}, "is no address"),
    ],
)
def test_invalid_options_are_answered_in_words(served_output: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_serve_config(served_output, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("header", "name"),
    [("a:1", "a"), ("A.", "a"), ("[::1]:8", "::1"), ("[::1]", "::1"), ("a:b", None), (":8", None), ("[::1]x", None)],
)
def test_the_name_in_a_host_header(header: str, name: str | None) -> None:
    assert host_name(header) == name
