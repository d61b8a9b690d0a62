"""Search over HTTP, and its page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.serve.conftest import HOSTILE, TEXTS, OpenClient
from tests.support.tiny_models import tiny_cross_encoder
from ultimate_embedder import open_output

BERT, QWEN = "tiny-bert", "qwen3-embedding-0.6b"


def _post(client: TestClient, **fields: Any) -> Any:
    return client.post("/search", json={"question": "a fox", **fields})


def test_the_api_gives_what_the_library_gives(client: TestClient, served_output: Path) -> None:
    wanted: dict[str, Any] = {"top": 3, "collection": ["docs"], "using": [BERT], "filter": {"source": "fox.md"}}
    found = _post(client, **wanted).json()
    expected = open_output(served_output).search("a fox", offline=True, **wanted)
    assert [hit["point_id"] for hit in found["hits"]] == [hit.point_id for hit in expected]
    assert [hit["score"] for hit in found["hits"]] == pytest.approx([hit.score for hit in expected], abs=1e-5)
    assert found["collections"] == ["docs"]


def test_several_models_are_fused_and_each_leg_has_its_score(client: TestClient) -> None:
    found = _post(client, top=2, fusion="rrf", weights={BERT: 2.0, QWEN: 1.0}).json()
    assert (found["fusion"], found["collections"]) == ("rrf", ["docs", "more"])
    assert all(set(hit["scores"]) == {BERT, QWEN} for hit in found["hits"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"question": ""}, "'question' is empty"),
        ({"question": 7}, "not text"),
        ({"top": 0}, "'top'"),
        ({"top": 1001}, "1,000 at most"),
        ({"candidates": 10_001}, "10,000 at most"),
        ({"using": ["tiny-bird"]}, "'using' tiny-bird"),
        ({"fusion": "sum"}, "'fusion' sum: not one of"),
        ({"filter": {"nothing": 1}}, "'filter' nothing: no point has such a key"),
        ({"filter": 5}, "'filter' 5: not key=value"),
        ({"collection": ["dogs"]}, "has no collection 'dogs'"),
        ({"collection": ["../docs"]}, "has no collection"),
        ({"rerank": True}, "--rerank MODEL"),
        ({"rerank": "another"}, "true or false"),
        ({"url": "http://evil.example"}, "There is no field 'url'"),
        ({"model": ["/etc"]}, "There is no field 'model'"),
    ],
)
def test_a_wrong_request_is_answered_in_words(client: TestClient, fields: dict[str, Any], words: str) -> None:
    answer = _post(client, **fields)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]


def test_the_reranker_of_the_server_sorts_if_a_request_asks_for_it(
    open_client: OpenClient, served_output: Path
) -> None:
    client = open_client(served_output, rerank=str(tiny_cross_encoder()), devices="cpu")
    found = _post(client, top=3, collection="docs", rerank=True).json()
    assert found["reranked"]["pairs"] == len(TEXTS)
    scores = [hit["score"] for hit in found["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert _post(client, top=3, collection="docs").json()["reranked"] is None
    page = client.get("/search", params={"q": "a fox", "collection": "docs", "rerank": "1"}).text
    assert "before reranking" in page
    assert "checked> rerank with" in page


def test_the_page_shows_models_side_by_side(client: TestClient) -> None:
    page = client.get("/search", params={"q": "a fox", "using": [BERT, QWEN, "fused"], "collection": "docs", "top": 2})
    assert page.status_code == 200
    columns = page.text.split('<section class="column">')[1:]
    assert [re.search("<h2>(.*?)</h2>", column)[1] for column in columns] == [BERT, QWEN, "fused"]  # type: ignore[index]
    assert all(column.count("<article>") == 2 for column in columns)
    assert "no. " in page.text or "only here" in page.text
    assert f"{BERT} 0." in columns[2]
    empty = client.get("/search").text
    assert re.findall('name="using" value="([^"]*)" checked', empty) == [
        "fused"
    ]  # all vectors, unless others are chosen
    assert "all vectors" not in empty
    part = client.get("/search/results", params={"q": "a fox", "using": BERT})
    assert part.text.startswith('<div class="columns">')


def test_a_column_that_cannot_be_searched_says_why_beside_the_others(client: TestClient) -> None:
    page = client.get("/search", params={"q": "a fox", "using": [BERT, "sparse"]}).text
    assert page.count("<article>") > 0
    assert "has no sparse vectors" in page


def test_texts_of_chunks_and_of_requests_are_never_markup(client: TestClient) -> None:
    params = {"q": HOSTILE, "filter": HOSTILE, "collection": "docs", "using": ["all vectors", HOSTILE], "top": "20"}
    for answer in (client.get("/search", params=params), client.get("/search", params={**params, "filter": ""})):
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
        assert "<img" not in answer.text
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", answer.text)
    assert "&lt;script&gt;alert(&#x27;x&#x27;)" in answer.text
    assert client.get("/search", params={"q": "a", "top": "many"}).status_code == 200


def test_an_output_without_exports_says_so(open_client: OpenClient, tmp_path: Path) -> None:
    (tmp_path / "docs" / "store").mkdir(parents=True)
    client = open_client(tmp_path)
    assert "Nothing to search yet" in client.get("/search").text
    assert _post(client).status_code in (400, 503)


def test_points_of_a_later_run_are_found(
    client: TestClient, open_client: OpenClient, served_output: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(served_output, tmp_path / "out"))
    moved = open_client(copy)
    assert _post(moved, collection=["docs"]).json()["points"] == len(TEXTS)
    shutil.rmtree(copy / "docs")
    shutil.copytree(copy / "more", copy / "docs")
    assert _post(moved, collection=["docs"]).json()["hits"][0]["collection"] == "more"
