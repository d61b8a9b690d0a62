"""Files that other libraries wrote (tests/data/ecosystem): all are embedded, with their ids and metadata."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.cli import main
from ultimate_embedder.output import Output
from ultimate_embedder.summary import RunSummary

FILES = Path(__file__).parent / "data" / "ecosystem" / "chunks"
TEXTS = [
    "A lease gives one model the whole card until its pass is done.",
    "When a batch does not fit, it is halved and tried again.",
    "Vectors are stored by the text they belong to, so equal texts are encoded once.",
]
REFUSED = "pandas-columns"
# by collection: ids, metadata of the second chunk, and where text and ids are said to be from
EXPECTED: dict[str, tuple[str | None, dict[str, Any] | None, tuple[str, str | None, str | None]]] = {
    "beir": ("b", {"url": "guide.md"}, ("text", "_id", "BEIR")),
    "chonkie": ("ck", {}, ("text", "id", "Chonkie")),
    "docling": (None, None, ("text", None, "Docling")),
    "haystack": ("hs", {"source": "guide.md", "page": 1}, ("content", "id", "Haystack")),
    "haystack-flat": ("hs", {"source": "guide.md", "page": 1}, ("content", "id", "Haystack")),
    "haystack-store": ("hs", {"source": "guide.md", "page": 1}, ("content", "id", "Haystack")),
    "langchain": ("lc", {"source": "guide.md", "page": 1}, ("page_content", "id", "LangChain")),
    "langchain-dumps": ("lc", {"source": "guide.md", "page": 1}, ("page_content", "id", "LangChain")),
    "langchain-store": ("lc", {"source": "guide.md", "page": 1}, ("text", "id", None)),
    "llama-index": ("li", {"file_name": "guide.md", "page": 1}, ("text", "id_", "LlamaIndex")),
    "llama-index-docstore": ("li", {"file_name": "guide.md", "page": 1}, ("text", "id_", "LlamaIndex")),
    "llama-index-node": ("li", {"page": 1}, ("text_resource.text", "id_", "LlamaIndex")),
    "pandas-lines": ("pd", None, ("content", "id", None)),
    "pandas-parquet": ("pd", None, ("content", "id", None)),
    "pandas-records": ("pd", None, ("content", "id", None)),
    "unstructured": ("un", {"filename": "guide.md", "page_number": 1}, ("text", "element_id", "Unstructured")),
}


@pytest.fixture(scope="module", params=["command line", "Python"])
def embedded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output of all the files."""
    out, model = tmp_path_factory.mktemp("ecosystem") / "out", str(tiny_model("bert"))
    if request.param == "Python":
        embed(FILES, out, models=[model], exports=["jsonl"], quiet=True)
    else:
        main(["embed", str(FILES), "--output", str(out), "--models", model, "--export", "jsonl", "--quiet"])
    return out


def payloads(output: Path, collection: str) -> list[dict[str, Any]]:
    lines = Output(output).collection(collection).jsonl.read_text("utf-8").splitlines()
    return [json.loads(line)["payload"] for line in lines]


def summary_of(output: Path) -> RunSummary:
    found = Output(output).read_summary()
    assert found is not None
    return found


def test_every_file_has_an_expectation() -> None:
    assert sorted(folder.name for folder in FILES.iterdir()) == sorted([*EXPECTED, REFUSED])


@pytest.mark.parametrize("collection", EXPECTED)
def test_texts_ids_and_metadata_are_kept(embedded: Path, collection: str) -> None:
    ids, metadata, _ = EXPECTED[collection]
    found = payloads(embedded, collection)
    assert [payload["text"].rstrip() for payload in found] == TEXTS
    if ids is not None:
        assert [payload["chunk_id"] for payload in found] == [f"{ids}-{number}" for number in range(3)]
    if metadata is not None:
        assert found[1]["metadata"] == metadata


@pytest.mark.parametrize("collection", EXPECTED)
def test_the_summary_says_where_fields_were_found(embedded: Path, collection: str) -> None:
    entry = next(each for each in summary_of(embedded).collections if each.collection == collection)
    (used,) = entry.fields
    assert (used.text, used.ids, used.tool) == EXPECTED[collection][2]
    assert used.records == entry.chunks.embedded == 3


def test_what_is_not_text_id_or_metadata_is_kept_too(embedded: Path) -> None:
    assert payloads(embedded, "docling")[1]["metadata"]["headings"] == ["Part 1"]
    assert payloads(embedded, "llama-index")[1]["relationships"]["1"]["node_id"] == "guide"
    assert payloads(embedded, "unstructured")[1]["type"] == "NarrativeText"
    assert payloads(embedded, "chonkie")[1]["start_index"] == 80
    assert payloads(embedded, "beir")[1]["title"] == "Part 1"
    assert payloads(embedded, "pandas-parquet")[1]["page"] == 1
    assert "blob" in payloads(embedded, "haystack-flat")[1]


def test_a_table_by_columns_is_refused_with_the_way_out(embedded: Path) -> None:
    entry = next(each for each in summary_of(embedded).collections if each.collection == REFUSED)
    assert [each.reason for each in entry.rejected] == [
        "the file has columns instead of records, as pandas writes them with to_json(). "
        'Write it with to_json(..., orient="records")'
    ]


def test_the_title_is_put_before_the_text_on_request(tmp_path: Path) -> None:
    shutil.copytree(FILES / "beir", tmp_path / "beir")
    model = str(tiny_model("bert"))
    summary = embed(
        tmp_path / "beir", tmp_path / "out", models=[model], exports=["jsonl"], title_field="title", quiet=True
    )
    found = payloads(tmp_path / "out", "beir")
    assert [payload["text"] for payload in found] == [f"Part {number} {text}" for number, text in enumerate(TEXTS)]
    assert found[0]["title"] == "Part 0"
    assert summary.collections[0].fields[0].text == "title and text"
