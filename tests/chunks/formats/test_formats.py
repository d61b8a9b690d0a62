"""The list of formats: one module and one entry make a format, and everything else follows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ultimate_embedder.chunks import chunk_file_names, find_collections, formats, load_chunks
from ultimate_embedder.chunks.discover import is_chunk_file
from ultimate_embedder.chunks.formats import FORMATS, ChunkFormat, Record, find_format, named
from ultimate_embedder.chunks.read import read_records
from ultimate_embedder.events import Event
from ultimate_embedder.types import Rejected


def read_toy(path: Path, name: str) -> Iterator[Record | Rejected]:
    for position, word in enumerate(path.read_text("utf-8").split()):
        yield Rejected(name, position, "the word is bad") if word == "bad" else (position, word)


TOY = ChunkFormat(name="toy", patterns=("*.toy",), matches=named("*.toy"), read=read_toy)


@pytest.fixture
def with_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "FORMATS", (*FORMATS, TOY))


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a_chunks.json", "JSON"),
        ("Chunks.JSON", "JSON"),
        ("a.jsonl", "JSON Lines"),
        ("a_chunks.NDJSON", "JSON Lines"),
        ("a.json", "JSON"),
        ("a.json.GZ", "JSON"),
        ("a.jsonl.zst", "JSON Lines"),
        ("a.ndjson.gz", "JSON Lines"),
        ("a.csv", "CSV"),
        ("a.TSV.gz", "CSV"),
        ("a[1].parquet", "Parquet"),
        ("data-00000-of-00001.arrow", "Arrow"),
        ("a.feather", "Arrow"),
    ],
)
def test_a_format_is_found_by_the_name_of_the_file(file: str, name: str) -> None:
    assert [each.name for each in FORMATS if each.matches(Path("folder") / file)] == [name]


@pytest.mark.parametrize("file", ["a.jsonl.bak", "jsonl", "a.txt", "a.gz", "a.parquet.gz", "csv"])
def test_other_names_have_no_format(file: str) -> None:
    assert find_format(Path(file)) is None


@pytest.mark.parametrize("file", ["a.json", "a.txt", "words"])
def test_a_file_whose_name_has_no_format_is_read_as_json(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text('["one", "two"]', encoding="utf-8")
    assert list(read_records(tmp_path / file, file)) == [(0, "one"), (1, "two")]


@pytest.mark.usefixtures("with_toy")
def test_a_format_that_is_added_to_the_list_is_found_read_and_named(tmp_path: Path, seen: list[Event]) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.toy").write_text("one bad two", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    assert is_chunk_file(tmp_path / "docs" / "a.toy")
    found = find_collections(tmp_path)
    loaded = load_chunks(found.collections[0], tmp_path / "spool", seen.append)
    assert [text for block in loaded.table.blocks() for text in block.texts] == ["one", "two"]
    assert loaded.rejected == 1
    assert chunk_file_names() == "*.json, *.jsonl, *.ndjson, *.csv, *.tsv, *.parquet, *.arrow, *.feather or *.toy"
    assert chunk_file_names() in found.warnings[0]
