"""`search` on the command line: what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.tiny_models import tiny_cross_encoder, tiny_model
from ultimate_embedder import embed
from ultimate_embedder.files import write_json

MODELS = [str(tiny_model(architecture)) for architecture in ("bert", "mpnet")]
LONG = "\n".join(f"line {number} of a text that goes on and on, with more words than fit" for number in range(40))
RECORDS: list[dict[str, Any]] = [
    {"id": "a", "text": "a wing in a shock wave", "metadata": {"source": "wing.md", "headings": ["Flow", "Shocks"]}},
    {"id": "b", "text": LONG, "metadata": {"source": "long.md", "page": 2}},
    {
        "id": "c",
        "text": "\x1b[2J\x07evil \u202e text\nerror: forged",
        "metadata": {"source": "e\x1b[31mvil", "page": 1},
    },
]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("search")
    write_json(root / "chunks" / "docs" / "a_chunks.json", RECORDS)
    embed(root / "chunks", root / "out", models=MODELS, devices="cpu", quiet=True, no_report=True)
    return root / "out"


def test_hits_are_printed_with_score_source_section_and_text(run: Run, output: Path) -> None:
    result = run("search", output, "what is a shock?", "-v")
    assert result.code == 0
    (line,) = [line for line in result.out.splitlines() if "wing.md" in line]
    assert line.endswith("wing.md > Flow > Shocks")
    assert "    a wing in a shock wave" in result.out
    assert "3 hits by zscore of tiny-bert + tiny-mpnet over 3 candidates; 3 points in the Qdrant shard" in " ".join(
        result.out.split()
    )
    assert "tiny-bert 0." in result.out
    assert "line 5 of" in result.out
    assert "line 9 of" not in result.out
    assert max(map(len, result.out.splitlines()[:-2])) <= 100
    assert "time: open" in result.err
    assert "line 39 of" in run("search", output, "what is a shock?", "--full").out


def test_nothing_in_a_payload_steers_the_terminal_or_passes_for_a_line_of_ours(run: Run, output: Path) -> None:
    shown = run("search", output, "evil", "--full").out
    assert not set(shown) & set("\x1b\x07\u202e")
    assert "\\x1b[2J" in shown
    assert not any(line.startswith("error") for line in shown.splitlines())


def test_json_has_a_stable_shape(run: Run, output: Path) -> None:
    found = json.loads(run("search", output, "a wing", "--json", "--top", 1, "--fusion", "rrf").out)
    assert list(found) == [
        "version",
        "question",
        "collections",
        "place",
        "points",
        "legs",
        "fusion",
        "fused_by",
        "candidates",
        "reranked",
        "seconds",
        "hits",
    ]
    assert found["legs"] == [
        {"name": "tiny-bert", "weight": 1.0, "kind": "dense"},
        {"name": "tiny-mpnet", "weight": 1.0, "kind": "dense"},
    ]
    (hit,) = found["hits"]
    assert list(hit) == [
        "rank",
        "score",
        "scores",
        "chunk_id",
        "point_id",
        "collection",
        "source",
        "section",
        "text",
        "payload",
        "rank_before",
    ]
    assert list(hit["scores"]) == ["tiny-bert", "tiny-mpnet"]


def test_questions_are_read_from_standard_input(run: Run, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a wing\n\n  a plate \n"))
    lines = run("search", output, "-", "--json").out.splitlines()
    assert [json.loads(line)["question"] for line in lines] == ["a wing", "a plate"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert "QUESTION is empty" in run("search", output, "-").err


def test_a_filter_and_a_reranker(run: Run, output: Path) -> None:
    result = run(
        "search", output, "a wing", "--filter", "page=1,2", "--rerank", tiny_cross_encoder(), "--devices", "cpu"
    )
    assert "2 pairs" in result.out
    assert "wing.md" not in result.out
    assert "was 1." in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a wing", "--filter", "pag=1"], "error: --filter pag: no point has such a key. Did you mean page?"),
        (["a wing", "--filter", "page"], "error: --filter 'page': not key=value"),
        (["a wing", "--using", "tiny-brt"], "Did you mean tiny-bert?"),
        (["a wing", "--fusion", "rff"], "not one of zscore, rrf, dbsf. Did you mean rrf?"),
        (["a wing", "--colection", "docs"], "Did you mean --collection?"),
        (["a wing", "--weights", "tiny-bert"], "write --weights bge-m3=0.7"),
        ([" "], "error: QUESTION is empty"),
    ],
)
def test_mistakes_are_answered_with_exit_code_2(run: Run, output: Path, arguments: list[str], message: str) -> None:
    result = run("search", output, *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_what_is_no_output_is_refused(run: Run, tmp_path: Path) -> None:
    assert "is not a folder" in run("search", tmp_path / "nothing", "a wing").err
    result = run("search", tmp_path, "a wing")
    assert result.code == 2
    assert "is not an output of ultimate-embedder" in result.err
