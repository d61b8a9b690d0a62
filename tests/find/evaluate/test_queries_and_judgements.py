"""Files of queries and judgements, as people have them, and as they should not be."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ultimate_embedder.errors import UsageError
from ultimate_embedder.find.evaluate.judgements import read_judgements
from ultimate_embedder.find.evaluate.queries import read_queries

TEXTS = {"1": "what is lift", "q 2": 'heat, and "flow"'}
GRADES = {"1": {"a": 3, "b": 1}, "2": {"a": 0}}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("queries.jsonl", '{"_id": "1", "text": "what is lift"}\n{"_id": "q 2", "text": "heat, and \\"flow\\""}\n'),
        ("queries.jsonl", '{"qid": 1, "query": "what is lift"}\n\n{"qid": "q 2", "query": "heat, and \\"flow\\""}'),
        ("queries.json", json.dumps(TEXTS)),
        ("queries.json", json.dumps([{"id": key, "question": text} for key, text in TEXTS.items()])),
        ("queries.tsv", '1\twhat is lift\nq 2\theat, and "flow"\n'),
        ("queries.tsv", '\ufeff_id\ttext\r\n1\twhat is lift\r\nq 2\theat, and "flow"\r\n'),
        ("queries.csv", 'id,text\n1,what is lift\nq 2,"heat, and ""flow"""\n'),
        ("queries.csv", '1,what is lift\nq 2,"heat, and ""flow"""\n'),
        ("topics", '1\twhat is lift\nq 2\theat, and "flow"'),
    ],
)
def test_queries_are_read_in_every_format(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    found = read_queries(tmp_path / name)
    assert found.texts == TEXTS
    assert not found.problems


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("qrels.tsv", "query-id\tcorpus-id\tscore\n1\ta\t3\n1\tb\t1\n2\ta\t0\n"),  # BEIR
        ("qrels.tsv", "1\ta\t3\n1\tb\t1\n2\ta\t0"),
        ("qrels.txt", "1 0 a 3\n1 0 b 1\n2 0 a 0\n"),  # TREC
        ("qrels.txt", "1\t0\ta\t3\r\n1\t0\tb\t1\r\n2\t0\ta\t0\r\n"),
        ("qrels.csv", "qid,docid,relevance\n1,a,3.0\n1,b,1\n2,a,0\n"),
        ("qrels.csv", "1;a;3\n1;b;1\n2;a;0\n"),
        ("qrels.jsonl", '{"query_id": 1, "doc_id": "a", "rel": 3}\n{"query_id": 1, "doc_id": "b", "rel": true}\n'
         '{"query_id": "2", "doc_id": "a", "rel": "0"}\n'),
        ("qrels.json", json.dumps(GRADES)),
    ],
)  # fmt: skip
def test_judgements_are_read_in_every_format(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    found = read_judgements(tmp_path / name)
    assert found.grades == GRADES
    assert not found.problems
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    assert read_judgements(tmp_path / f"{name}.gz").grades == GRADES


def test_judgements_without_grades_are_relevant_and_lists_and_parquet_are_read(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("1\ta\n1\tb\n")
    (tmp_path / "lists.json").write_text('{"1": ["a", "b"]}')
    columns = {"query-id": [1, 1], "corpus-id": ["a", "b"], "score": [1, 1]}
    pq.write_table(pa.table(columns), tmp_path / "qrels.parquet")
    for name in ("pairs.tsv", "lists.json", "qrels.parquet"):
        assert read_judgements(tmp_path / name).grades == {"1": {"a": 1, "b": 1}}


def test_dictionaries_from_python_are_the_same(tmp_path: Path) -> None:
    assert read_queries(TEXTS).texts == TEXTS
    assert read_judgements(GRADES).grades == GRADES


def test_grades_may_be_made_binary() -> None:
    assert read_judgements(GRADES, least_grade=2).grades == {"1": {"a": 1, "b": 0}, "2": {"a": 0}}


def test_odd_judgements_are_counted_and_never_silently_changed(tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    path.write_text(
        "query-id\tcorpus-id\tscore\n1\ta\t3\n1\ta\t3\n1\ta\t4\n1\tb\t-2\n1\tc\t99999999999999999999\n1\td\t0.5\n"
        "1\te\tx\n\t f\t1\n1\tg\n1\th\tinf\n"
    )
    found = read_judgements(path)
    assert found.grades == {"1": {"a": 4, "b": 0}}
    told = "\n".join(found.problems)
    for words in (
        "1 x repeats a judgement (line 3)",
        "1 x repeats a judgement, with another grade: the higher counts (line 4)",
        "1 x has a negative grade, which counts as 0 (line 5)",
        "1 x has a grade beyond 1,000,000, and is skipped (line 6)",
        "3 x has no whole number as its grade, and is skipped (line 7: 0.5, line 8: x, line 11: inf)",
        "1 x has no query, and is skipped (line 9)",
        "1 x has not 3 values, as the header has (line 10)",
    ):
        assert words in told


def test_odd_queries_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text(
        '{"_id": "1", "text": "a"}\n{"_id": "1", "text": "b"}\n{"_id": "2", "text": " "}\n{"text": "c"}\n{"_id"'
    )
    found = read_queries(path)
    assert found.texts == {"1": "a"}
    told = "\n".join(found.problems)
    assert "has the id of another query, and is skipped (record 2)" in told
    assert "has no text, and is skipped (record 3)" in told
    assert "has no id, and is skipped (record 4)" in told
    assert "cannot be read (line 5 is not valid JSON" in told


@pytest.mark.parametrize("content", [b"", b"\n \n", b"{}", b"[]", b"null", b"x"])
def test_a_file_without_queries_or_judgements_is_refused_with_the_formats(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"has no queries: .*Give JSON Lines"):
        read_queries(path)
    with pytest.raises(UsageError, match=r"has no judgements: .*Give BEIR"):
        read_judgements(path)


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(1, 256)) * 20)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"1\ta\t1\n" * 100_000)[:-300])
    with pytest.raises(UsageError, match="is not text"):
        read_judgements(tmp_path / "binary")
    with pytest.raises(UsageError, match=r"cut.gz cannot be read: the gzip file is truncated"):
        read_judgements(tmp_path / "cut.gz")
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(UsageError, match="cannot be read"):
            read_queries(tmp_path / name)


def test_results_of_a_search_are_not_taken_for_judgements(tmp_path: Path) -> None:
    (tmp_path / "run.txt").write_text("1 Q0 a 1 0.9 minilm\n")
    with pytest.raises(UsageError, match="6 columns, like the results of a search in TREC"):
        read_judgements(tmp_path / "run.txt")


MARKS = [bytes([each]) for each in b'1a\t\n,; "{}[]:\xff\0']
WORDS = [b"null", b"-1", b"1e999", b"query-id", b"corpus-id", b"score", b"PAR1", b"\x1f\x8b"]
RECORDS = [b'{"_id": "1", "text": "x"}\n', b'{"1": {"a": ', b"1 0 a 1\n"]


@given(st.lists(st.one_of(st.sampled_from([*MARKS, *WORDS, *RECORDS]), st.binary(max_size=4)), max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_is_in_a_file_it_is_read_or_refused_in_words(tmp_path: Path, pieces: list[bytes]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"".join(pieces))
    for read in (read_queries, read_judgements):
        with contextlib.suppress(UsageError):
            read(path)
