"""`evaluate` on the command line: table, JSON, page, and what it says about mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.find.evaluate.conftest import QRELS, QUERIES, make_output
from ultimate_embedder.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output, queries and judgements."""
    folder = tmp_path_factory.mktemp("cli")
    make_output(folder / "out")
    lines = [json.dumps({"_id": key, "text": text}) for key, text in QUERIES.items()]
    (folder / "queries.jsonl").write_text("\n".join(lines))
    pairs = [f"{query}\t{name}\t{grade}" for query, found in QRELS.items() for name, grade in found.items()]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *pairs]))
    return folder


@pytest.fixture
def given(folder: Path) -> list[str]:
    queries, qrels = str(folder / "queries.jsonl"), str(folder / "qrels.tsv")
    return ["evaluate", str(folder / "out"), "--queries", queries, "--qrels", qrels, "-q"]


def test_the_table_goes_to_stdout_and_the_report_shows_it(
    folder: Path, given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    page = folder / "page.html"
    assert main([*given, "--html", str(page)]) == 0
    table, errors = capsys.readouterr()
    lines = table.splitlines()
    assert lines[0].startswith("docs: 5 queries, 30 judgements, 30 chunks; differences are to ")
    assert lines[2].split() == [
        *("name", "kind", "ndcg@10", "95", "%", "recall@100", "mrr@10", "map", "difference", "p", "bytes"),
    ]
    assert any(line.startswith("hybrid zscore ") for line in lines)
    assert any(line.startswith("advice: take ") for line in lines)
    assert lines[-1] == str(page)
    assert not errors
    report = (folder / "out" / "report.html").read_text()
    for content in (page.read_text(), report):
        assert "Search quality" in content
        assert "hybrid zscore" in content


def test_json_has_rows_with_the_names_that_scripts_read(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    row = next(each for each in found["rows"] if each["name"] == "bm25")
    assert row["kind"] == "sparse"
    assert (row["recall@100"], row["mrr@10"], row["map"]) == (1.0, 1.0, 1.0)
    assert row["interval"]["map"] == [1.0, 1.0]
    assert 0 <= row["interval"]["ndcg@10"][0] <= row["ndcg@10"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("evaluate {out}", "--queries is missing. Without judgements, --make-queries makes a check of headings."),
        ("evaluate {out} --queries {queries}", "--qrels is missing."),
        ("evaluate {out} --queries nowhere --qrels {qrels}", "--queries nowhere does not exist."),
        ("evaluate {out} --queries {out} --qrels {qrels}", "is a folder. Give a file."),
        ("evaluate {out} --queries {queries} --qrels {qrels} --make-queries", "drop it, or drop --queries and --qrels"),
        ("evaluate {out} --make-queries x", "--make-queries x: write a number of queries."),
        ("evaluate {out} --make-queries 0", "--make-queries 0: must be at least 1."),
        ("evaluate nowhere --make-queries", "nowhere is not a folder. Give the --output of an earlier embed."),
        ("evaluate {root} --make-queries", "is not an output of ultimate-embedder"),
        ("evaluate {out} --queries {queries} --qrels {qrels} --collection dogs", "has no collection 'dogs'"),
        ("evaluate {out} --queries {queries} --qrels {qrels} --dims 0", "--dims 0: write numbers of dimensions"),
        ("evaluate {out} --queries {queries} --qrels {qrels} --split half", "--split half"),
        ("evaluate {out} --queries {queries} --qrels {qrels} --tune", "each half needs 10"),
        ("evaluate {out} --queries {qrels} --qrels {queries}", "has no judgements"),
    ],
)
def test_a_mistake_is_answered_with_what_to_type(
    folder: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"out": folder / "out", "queries": folder / "queries.jsonl", "qrels": folder / "qrels.tsv", "root": folder}
    assert main([word.format(**names) for word in words.split()]) == 2
    told, errors = capsys.readouterr()
    assert said in errors
    assert not told
    assert "Traceback" not in errors
