"""OpenAI's API: vectors as the output has them, and clear errors."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.serve.conftest import TEXTS, OpenClient
from ultimate_embedder import open_output
from ultimate_embedder.config import HubAccess
from ultimate_embedder.find import open_query_encoder
from ultimate_embedder.serve.encoders import Encoded, Encoders

BERT, QWEN = "tiny-bert", "qwen3-embedding-0.6b"


def _post(client: TestClient, **fields: Any) -> Any:
    return client.post("/v1/embeddings", json={"model": BERT, "input": TEXTS, **fields})


def _vectors(answer: Any) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    return np.array([each["embedding"] for each in answer.json()["data"]], np.float32)


def test_documents_get_the_vectors_of_the_collection(client: TestClient, served_output: Path) -> None:
    stored = open_output(served_output)["docs"]
    for model in (BERT, QWEN):
        answer = _post(client, model=f"docs/{model}", input_type="document")
        assert np.allclose(_vectors(answer), stored.vectors(model), atol=1e-5)
        assert answer.json()["model"] == f"docs/{model}"
        assert [each["index"] for each in answer.json()["data"]] == list(range(len(TEXTS)))


def test_a_query_is_the_default_and_has_its_prompt(client: TestClient, served_output: Path) -> None:
    expected = open_query_encoder(open_output(served_output), "docs", HubAccess(offline=True)).encode_query("a fox")
    query = _vectors(_post(client, input="a fox"))
    assert np.allclose(query, expected[BERT], atol=1e-5)
    assert not np.allclose(query, _vectors(_post(client, input="a fox", input_type="document")), atol=1e-3)


def test_base64_has_the_same_numbers(client: TestClient) -> None:
    answer = _post(client, input="a fox", encoding_format="base64")
    (written,) = (each["embedding"] for each in answer.json()["data"])
    decoded = np.frombuffer(base64.b64decode(written), "<f4")
    assert np.array_equal(decoded, _vectors(_post(client, input="a fox"))[0])


def test_dimensions_shorten_a_matryoshka_vector_and_normalise_it(client: TestClient) -> None:
    whole, short = (_vectors(_post(client, model=QWEN, input="a fox", dimensions=dim))[0] for dim in (64, 32))
    assert np.allclose(short, whole[:32] / np.linalg.norm(whole[:32]), atol=1e-5)


def test_usage_counts_tokens_and_tells_of_truncation(client: TestClient) -> None:
    short, long = _post(client, input="a fox").json(), _post(client, input="a fox " * 500).json()
    assert 0 < short["usage"]["prompt_tokens"] < long["usage"]["prompt_tokens"] <= 512
    assert (short["truncated_inputs"], long["truncated_inputs"]) == (0, 1)


def test_models_are_listed_by_collection_and_by_short_name(client: TestClient) -> None:
    listed = client.get("/v1/models").json()["data"]
    assert {each["id"] for each in listed} == {f"{of}{m}" for of in ("docs/", "more/", "") for m in (BERT, QWEN)}
    one = client.get(f"/v1/models/docs/{QWEN}").json()
    assert (one["object"], one["collection"], one["dimensions"]) == ("model", "docs", [32, 64])
    assert one["created"] > 1_500_000_000
    assert client.get("/v1/models/nothing").status_code == 404


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": [1, 2, 3]}, "input", "token ids"),
        ({"input": [[1, 2], [3]]}, "input", "check_embedding_ctx_length=False"),
        ({"input": []}, "input", "not empty"),
        ({"input": None}, "input", "a string, or a list of strings"),
        ({"input": ["a", ""]}, "input", r"input[1] is empty"),
        ({"input": ["a", 7]}, "input", r"input[1] is of type int"),
        ({"input": ["a"] * 2049}, "input", "2,048 at most"),
        ({"model": 7}, "model", "GET /v1/models"),
        ({"dimensions": 33}, "dimensions", "can be 64, and not 33"),
        ({"dimensions": True}, "dimensions", "whole number"),
        ({"encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ({"input_type": "passage"}, "input_type", "'query' or 'document'"),
        ({"input_tpye": "query"}, "input_tpye", "The fields are"),
    ],
)
def test_a_wrong_field_is_named(client: TestClient, fields: dict[str, Any], param: str, words: str) -> None:
    answer = _post(client, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert words in error["message"]


def test_an_unknown_model_is_answered_with_the_known_ones(client: TestClient) -> None:
    answer = _post(client, model="tiny-brt")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "Did you mean tiny-bert?" in answer.json()["error"]["message"]


def test_a_body_that_is_not_json_is_refused(client: TestClient) -> None:
    as_form = client.post("/v1/embeddings", content=b'{"input": "a"}', headers={"Content-Type": "text/plain"})
    assert as_form.status_code == 415
    for content, words in ((b'{"input": ', "not JSON"), (b"[1]", "JSON object"), (b"[" * 100_000, "not JSON")):
        answer = client.post("/v1/embeddings", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]


def test_a_vector_that_is_not_finite_is_not_sent(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = np.array([[1.0, 0.0], [np.nan, 1.0]], np.float32)
    monkeypatch.setattr(Encoders, "encode", lambda *arguments: Encoded(broken, 2, 0))
    answer = _post(client, input=["a", "b"])
    assert answer.status_code == 400
    assert "no usable vector for input[1]" in answer.json()["error"]["message"]


def test_an_output_without_a_summary_says_when_to_ask_again(open_client: OpenClient, tmp_path: Path) -> None:
    (tmp_path / "docs" / "store").mkdir(parents=True)
    answer = _post(open_client(tmp_path))
    assert answer.status_code == 503
    assert "when embed has ended" in answer.json()["error"]["message"]


def test_a_model_that_is_gone_is_an_error_of_the_server_in_words(
    open_client: OpenClient, served_output: Path, tmp_path: Path
) -> None:
    content = (served_output / "summary.json").read_text()
    (tmp_path / "docs" / "store").mkdir(parents=True)
    (tmp_path / "summary.json").write_text(content.replace("tiny-bert", "tiny-bird"))
    client = open_client(tmp_path)
    answer = _post(client, model="docs/tiny-bird")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_not_available")
    assert "tiny-bird" in answer.json()["error"]["message"]
