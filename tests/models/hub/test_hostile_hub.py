"""Whoever answers in the hub's name: nothing is written outside of the cache, and the error is in words."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile import API, COMMIT, CONTENT, entry, info, pull, tell, tree
from tests.support.hub_here import use_hub_here
from tests.support.hub_server import HubServer
from ultimate_embedder.errors import DownloadError, ModelError

REPO = "models--some--model"


@pytest.fixture(scope="module")
def served() -> Iterator[HubServer]:
    with HubServer() as hub:
        yield hub


@pytest.fixture
def hostile(served: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    use_hub_here(served.url, tmp_path, monkeypatch)
    served.replies, served.requests = [], []
    return served


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "home" / "hub"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with a file of the user's, outside of the cache."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "victim.txt").write_text("precious")
    return folder


def refused(cache: Path) -> str:
    with pytest.raises(ModelError) as caught:
        pull(cache)
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "../../../../../../outside/victim.txt",
        "1_Pooling/../../../../../../../outside/victim.txt",
        "{outside}/victim.txt",
        "..\\..\\victim.txt",
        "C:\\victim.txt",
        "c:victim.txt",
        "..",
        "a\0b",
        "\ud800.json",
        "x" * 300,
        "a/./b.json",
        "a//b.json",
        "nul.json",
        "trailing/",
    ],
)
def test_a_name_that_leaves_the_snapshot_is_refused_and_touches_nothing(
    hostile: HubServer, cache: Path, outside: Path, name: str
) -> None:
    tell(hostile, info(entry(), entry(name.format(outside=outside))))
    words = refused(cache)
    assert "name" in words
    assert hostile.url in words
    assert tree(outside) == {"victim.txt": b"precious"}
    assert not list(cache.rglob("*.json"))


@pytest.mark.parametrize(
    "described",
    [
        info(sha="../../../../outside"),
        info(sha="0123"),
        info(sha=COMMIT.upper()),
        info(sha=["x"]),
        info(entry(blobId="../../victim.txt")),
        info(entry(blobId="g" * 40)),
        info(entry(blobId=None)),
        info(entry(lfs={"sha256": "../../victim.txt"})),
        info(entry(lfs={"oid": "a" * 40})),
        info(entry(lfs={"sha256": 5})),
        info(entry(lfs="large")),
        info(entry(size=-1)),
        info(entry(size=True)),
        info(entry(size=1.5)),
        info(entry(size="10")),
        info(entry(size=None)),
        info(entry(size=10**30)),
        info(entry(size=float("inf"))),
        info(entry(name=5)),
        info(entry(name="")),
        info("config.json"),
        info(siblings={"config.json": 1}),
        info(siblings=None),
        [],
        "text",
        None,
        {},
        b"<html>not json</html>",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"",
        {"sha": COMMIT, "siblings": [{}]},
    ],
    ids=lambda described: str(described)[:60],
)
def test_a_malformed_answer_is_an_error_in_words(
    hostile: HubServer, cache: Path, outside: Path, described: Any
) -> None:
    tell(hostile, described)
    with pytest.raises(DownloadError, match=f"cannot look up some/model from {hostile.url}: "):
        pull(cache)
    assert len(hostile.asked(API)) == 1  # asking again would not help
    assert not cache.exists()


@pytest.mark.parametrize(
    "names", [("config.json", "config.json"), ("config.json", "Config.JSON"), ("a/b.json", "a"), ("é.json", "é.json")]
)
def test_names_that_are_one_file_on_some_disk_are_refused(
    hostile: HubServer, cache: Path, names: tuple[str, str]
) -> None:
    tell(hostile, info(*map(entry, names)))
    assert "in each other's place" in refused(cache)


def test_an_endless_description_is_not_read_to_its_end(
    hostile: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ultimate_embedder.models.hub_client.MOST_BYTES", 1000)
    for length in ({}, {"Content-Length": ""}):
        hostile.replies = [(API, (200, b" " * 100_000, length))]
        assert "description of the model" in refused(cache)


def test_more_files_than_a_model_has_are_refused(hostile: HubServer, cache: Path) -> None:
    tell(hostile, info(*[entry(f"{number}.json") for number in range(20_001)]))
    assert "it lists 20001 files" in refused(cache)


@pytest.mark.parametrize("length", ["honest", "none", "that of the announced file"])
def test_a_file_longer_than_announced_is_cut_off(hostile: HubServer, cache: Path, length: str) -> None:
    sent = {"honest": {}, "none": {"Content-Length": ""}}.get(length, {"Content-Length": str(len(CONTENT))})
    tell(hostile, info(), file=CONTENT + b"x" * 5_000_000, headers=sent)
    if length == "that of the announced file":  # no client reads on after that
        assert (pull_or_incomplete(cache) / "config.json").read_bytes() == CONTENT
        return
    assert str(len(CONTENT)) in refused(cache)
    assert all(path.stat().st_size < 1000 for path in cache.rglob("*") if path.is_file())
    assert len(hostile.asked("resolve")) == 1


def test_a_partial_download_that_is_too_long_is_begun_again(hostile: HubServer, cache: Path) -> None:
    blobs = cache / REPO / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{entry()['blobId']}.incomplete").write_bytes(b"x" * 1000)
    tell(hostile, info())
    assert (pull_or_incomplete(cache) / "config.json").read_bytes() == CONTENT


def pull_or_incomplete(cache: Path) -> Path:
    """Where the file went; the model has no weights, which is said after the download."""
    assert "the weights are missing" in refused(cache)
    return cache / REPO / "snapshots" / COMMIT


def test_a_compressed_answer_is_not_unpacked(hostile: HubServer, cache: Path) -> None:
    hostile.replies = [(API, (200, gzip.compress(b" " * 1_000_000), {"Content-Encoding": "gzip"}))]
    assert "compressed" in refused(cache)


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x", "http://[", "/api/models/loop"]
)
@pytest.mark.parametrize("where", [API, "GET .*/resolve/"])
def test_a_redirect_to_no_hub_is_an_error_in_words(hostile: HubServer, cache: Path, target: str, where: str) -> None:
    tell(hostile, info())
    hostile.replies = [(f"{where}|{API}/loop", (302, b"", {"Location": target})), *hostile.replies]
    with pytest.raises(DownloadError, match=rf"cannot (look up|download) .* from {hostile.url}"):
        pull(cache)


def test_a_model_larger_than_the_disk_is_refused_before_it_is_downloaded(hostile: HubServer, cache: Path) -> None:
    tell(hostile, info(entry(size=1 << 43)))
    assert "GB of free space" in refused(cache)
    assert hostile.asked("resolve") == []


@pytest.mark.parametrize("link", [f"snapshots/{COMMIT}/1_Pooling", f"snapshots/{COMMIT}", "snapshots", "blobs", "refs"])
def test_a_link_in_the_cache_does_not_lead_a_download_elsewhere(
    hostile: HubServer, cache: Path, outside: Path, link: str
) -> None:
    path = cache / REPO / link
    path.parent.mkdir(parents=True)
    path.symlink_to(outside, target_is_directory=True)
    tell(hostile, info(entry("1_Pooling/config.json"), entry("1_Pooling/victim.txt"), entry("victim.txt")))
    assert "link" in refused(cache)
    assert tree(outside) == {"victim.txt": b"precious"}


def test_a_file_that_is_a_link_to_elsewhere_is_replaced_and_what_it_leads_to_stays(
    hostile: HubServer, cache: Path, outside: Path
) -> None:
    blob = entry()["blobId"]
    for name in (f"snapshots/{COMMIT}/config.json", f"blobs/{blob}", f"blobs/{blob}.incomplete"):
        (cache / REPO / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / REPO / name).symlink_to(outside / "victim.txt")
    tell(hostile, info())
    assert (pull_or_incomplete(cache) / "config.json").read_bytes() == CONTENT
    assert tree(outside) == {"victim.txt": b"precious"}


def test_a_folder_in_the_place_of_a_file_is_an_error_in_words(hostile: HubServer, cache: Path) -> None:
    (cache / REPO / "snapshots" / COMMIT / "config.json" / "x").mkdir(parents=True)
    tell(hostile, info())
    assert "cannot be stored in" in refused(cache)
    shutil.rmtree(cache)


def test_a_description_of_another_commit_than_the_pinned_one_is_refused(hostile: HubServer) -> None:
    from ultimate_embedder.models.hub_answers import AnswerError, parse_model_info

    with pytest.raises(AnswerError, match="was asked for"):
        parse_model_info(json.dumps(info()).encode(), "f" * 40)


@pytest.mark.parametrize(
    "described", [{}, info(entry("config.json"), entry("CONFIG.json"))], ids=["looked up", "names"]
)
def test_a_password_in_the_address_of_the_hub_is_not_in_the_error_which_a_summary_stores(
    hostile: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch, described: Any
) -> None:
    tell(hostile, described)
    monkeypatch.setenv("HF_ENDPOINT", hostile.url.replace("://", "://somebody:secret@"))
    message = refused(cache)
    assert f"from {hostile.url}: " in message
    assert "secret" not in message
