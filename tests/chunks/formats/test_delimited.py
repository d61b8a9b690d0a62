"""CSV and TSV: rows by the names of their columns; a bad row is rejected alone, with its line."""

from __future__ import annotations

import csv
import io
import tracemalloc

import pytest

from tests.chunks.conftest import Load, Read
from ultimate_embedder.chunks.formats import delimited
from ultimate_embedder.chunks.formats.format import LARGEST_RECORD
from ultimate_embedder.types import Rejected

NAME = "a.csv"
MiB = 1 << 20


def test_rows_are_records_and_all_values_stay_text(read: Read) -> None:
    content = b'id,text,page\n007,"Hello, ""world""",3\n08,two,\n'
    assert read(content, NAME) == [
        (0, {"id": "007", "text": 'Hello, "world"', "page": "3"}),
        (1, {"id": "08", "text": "two", "page": ""}),
    ]


def test_ids_keep_their_zeros(load: Load) -> None:
    assert load(b"id,text\n007,one\n7,two\n", NAME) == (["one", "two"], [])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_every_line_end_and_encoding_is_understood(read: Read, end: str, encoding: str) -> None:
    content = end.join(["text,n", '"é日 😀",1', "two,2", ""]).encode(encoding)
    assert read(content, NAME) == [(0, {"text": "é日 😀", "n": "1"}), (1, {"text": "two", "n": "2"})]


def test_a_quoted_text_may_have_line_breaks(read: Read) -> None:
    content = b'text,n\r\n"one\r\n\r\n two\nthree",1\r\nfour,2\r\n'
    assert read(content, NAME) == [(0, {"text": "one\r\n\r\n two\nthree", "n": "1"}), (1, {"text": "four", "n": "2"})]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_that_of_the_header(read: Read, delimiter: str) -> None:
    content = f'text{delimiter}"a,b;c"\none, two; three{delimiter}x\n'.replace("one, two; three", '"one, two; three"')
    assert read(content.encode(), NAME) == [(0, {"text": "one, two; three", "a,b;c": "x"})]


def test_a_tsv_of_one_column_is_not_split_at_commas(read: Read) -> None:
    assert read(b"text\none, two\n", "a.tsv") == [(0, {"text": "one, two"})]


def test_a_row_with_too_few_or_too_many_values_is_rejected_with_its_line(read: Read) -> None:
    content = b'text,n\n"one\n\n",1\n\ntwo\nthree,3,x\nfour,4\n'
    assert read(content, NAME) == [
        (0, {"text": "one\n\n", "n": "1"}),
        Rejected(NAME, 1, "line 6 has 1 values where the header has 2: two"),
        Rejected(NAME, 2, "line 7 has 3 values where the header has 2: three, 3, x"),
        (3, {"text": "four", "n": "4"}),
    ]


def test_a_quote_that_does_not_end_rejects_only_its_row(read: Read) -> None:
    content = b'text,n\none,1\n"two,2\nthree,3\n"four ""x""",4\nfive,5\n'
    assert read(content, NAME) == [
        (0, {"text": "one", "n": "1"}),
        Rejected(NAME, 1, "line 3 is not valid CSV (',' expected after '\"')"),
        (2, {"text": "three", "n": "3"}),
        (3, {"text": 'four "x"', "n": "4"}),
        (4, {"text": "five", "n": "5"}),
    ]
    assert read(b'text,n\n"one,1\ntwo,2\n', NAME) == [
        Rejected(NAME, 0, "line 2 is not valid CSV (unexpected end of data)"),
        (1, {"text": "two", "n": "2"}),
    ]


def test_blank_lines_are_skipped_and_rows_of_empty_values_are_not(load: Load) -> None:
    texts, rejected = load(b"text,n\n\none,1\n  \n,\n", NAME)
    assert texts == ["one"]
    assert [each.reason for each in rejected] == ["the text is empty"]


def test_a_quote_within_a_text_is_a_character(read: Read) -> None:
    assert read(b'text,n\na 5" pipe,1\n', NAME) == [(0, {"text": 'a 5" pipe', "n": "1"})]


def test_lines_behind_a_quote_that_does_not_end_are_not_read_again_without_limit(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "MOST_READ_AGAIN", 500)
    found = read(("text,n\n" + '"open,1\n' + "row,2\n" * 99).encode(), NAME)
    skipped = "the 99 lines after it, which may belong to it, are skipped"
    assert found == [Rejected(NAME, 0, f"line 2 is not valid CSV (unexpected end of data); {skipped}")]


def test_a_row_beyond_the_limit_rejects_only_itself(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "LARGEST_RECORD", 40)
    monkeypatch.setattr(delimited, "BLOCK_CHARACTERS", 8)
    reason = "begins a row of more than 40 characters, which is the limit"
    content = b"text,n\none,1\n" + b"x" * 200 + b",2\nthree,3\n" + b'"' + b"y\n" * 30 + b'",4\nfive,5\n'
    found = read(content, NAME)
    assert found[:3] == [
        (0, {"text": "one", "n": "1"}),
        Rejected(NAME, 1, f"line 3 {reason}"),
        (2, {"text": "three", "n": "3"}),
    ]
    assert found[3] == Rejected(NAME, 3, f"line 5 {reason}")
    assert found[-1] == (len(found) - 1, {"text": "five", "n": "5"})


def test_a_giant_field_takes_no_more_memory_than_a_record(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "LARGEST_RECORD", 1 * MiB)
    monkeypatch.setattr(delimited, "MOST_READ_AGAIN", 2 * MiB)
    line = "y" * 1000 + "\n"
    content = ("text,n\n" + "x" * (40 * MiB) + ",1\n" + '"' + line * 5000 + '",2\nlast,3\n').encode()
    tracemalloc.start()
    items = read(content, NAME)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert items[0] == Rejected(NAME, 0, "line 2 begins a row of more than 1,048,576 characters, which is the limit")
    assert items[-1][1] == {"text": "last", "n": "3"}
    assert peak < 30 * MiB


def test_texts_longer_than_the_limit_of_the_csv_module_are_read(read: Read) -> None:
    text = "word " * 40_000
    assert read(f"text\n{text}\n".encode(), NAME) == [(0, {"text": text})]
    assert csv.field_size_limit() >= LARGEST_RECORD


def test_nul_bytes_are_survived(load: Load) -> None:
    texts, rejected = load(b"text,n\no\0ne,1\ntwo,2\n" + b"\0" * 100, NAME)
    assert "two" in texts
    assert len(texts) + len(rejected) >= 2


def test_bytes_that_are_not_utf_8_reject_their_row(load: Load) -> None:
    texts, rejected = load("text,n\ncafé,1\ntwo,2\n".encode("latin-1"), NAME)
    assert texts == ["two"]
    assert [each.reason for each in rejected] == [
        "the text is not valid Unicode at character 3: byte 0xe9 is not UTF-8"
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file has only whitespace or NUL bytes"),
        (b"text,n\n", "the file has no rows, only a header: text, n"),
        (b'"text', "the header cannot be read: line 1 is not valid CSV (unexpected end of data)"),
    ],
)
def test_a_file_without_rows_is_rejected(read: Read, content: bytes, reason: str) -> None:
    assert read(content, NAME) == [Rejected(NAME, None, reason)]


def test_of_two_columns_with_one_name_the_last_counts(read: Read) -> None:
    assert read(b"text,text\none,two\n", NAME) == [(0, {"text": "two"})]


def test_what_the_csv_module_writes_is_read_as_it_was(read: Read) -> None:
    texts = ["", ",", '"', '""', "a\nb", "\r\n", " x ", "a,b\tc;d|e", "'", "\\", "日本"]
    for dialect in ("excel", "excel-tab", "unix"):
        file = io.StringIO(newline="")
        writer = csv.writer(file, dialect)
        writer.writerows([["text", "n"], *([text, "x"] for text in texts)])
        expected = [(row, {"text": text, "n": "x"}) for row, text in enumerate(texts)]
        assert read(file.getvalue().encode(), NAME) == expected
