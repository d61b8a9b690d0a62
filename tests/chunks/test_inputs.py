"""Several inputs, patterns, known layouts and other files: what becomes which collection, and what is left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.chunks.test_discover import found, put
from ultimate_embedder.chunks import find_collections, load_chunks
from ultimate_embedder.chunks.discover import is_chunk_file
from ultimate_embedder.config import read_inputs
from ultimate_embedder.errors import UsageError
from ultimate_embedder.events import Event

# as datasets 5.2.0 writes them, shortened
DATASET_INFO = {"citation": "", "description": "", "features": {"text": {"dtype": "string", "_type": "Value"}}}
STATE = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "1f0", "_split": None}


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def save_dataset(folder: Path, texts: list[str]) -> Path:
    """A folder as `Dataset.save_to_disk` makes it."""
    write(folder / "dataset_info.json", DATASET_INFO)
    write(folder / "state.json", STATE)
    table = pa.table({"text": texts})
    with pa.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    return folder


def collections_of(*inputs: Path, **options: Any) -> list[tuple[str, list[str]]]:
    collections = find_collections(inputs, **options).collections
    return [(each.name, [file.relative_to(each.folder).as_posix() for file in each.files]) for each in collections]


# several inputs


def test_files_and_folders_together_are_collections_by_their_names(tmp_path: Path) -> None:
    inputs = [put(tmp_path / "a_chunks.json"), put(tmp_path / "x" / "b.csv.gz"), put(tmp_path / "c" / "d.jsonl").parent]
    assert collections_of(*inputs) == [("a", ["a_chunks.json"]), ("b", ["b.csv.gz"]), ("c", ["d.jsonl"])]


def test_a_pattern_is_what_a_shell_makes_of_it(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "sub/c.csv", "d.pdf"):
        put(tmp_path / name)
    assert collections_of(tmp_path / "*.csv") == [("a", ["a.csv"]), ("b", ["b.csv"])]
    assert collections_of(tmp_path / "**" / "c.csv") == [("c", ["c.csv"])]


def test_a_file_that_is_named_and_matches_a_pattern_counts_once(tmp_path: Path) -> None:
    file = put(tmp_path / "a.csv")
    assert collections_of(file, tmp_path / "*.csv", tmp_path / "sub" / ".." / "a.csv") == [("a", ["a.csv"])]


def test_what_a_pattern_matches_and_is_no_chunk_file_is_left_out(tmp_path: Path) -> None:
    for name in ("a.csv", "d.pdf"):
        put(tmp_path / name)
    discovery = find_collections([tmp_path / "*.*"])
    assert [each.name for each in discovery.collections] == ["a"]
    assert discovery.warnings == ("left out: 1 .pdf (not chunk files)",)


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    assert collections_of(put(tmp_path / "a[1].jsonl")) == [("a[1]", ["a[1].jsonl"])]


def test_with_a_name_everything_is_one_collection(tmp_path: Path) -> None:
    inputs = [
        put(tmp_path / "x" / "a.jsonl"),
        put(tmp_path / "y" / "a.jsonl"),
        put(tmp_path / "z" / "s" / "b.csv").parent,
    ]
    expected = [("all", ["x/a.jsonl", "y/a.jsonl", "z/s/b.csv"])]
    assert collections_of(*inputs, name="all") == expected
    assert collections_of(*inputs, inputs[0], tmp_path / "x", name="all") == expected
    assert collections_of(inputs[0], name="all") == [("all", ["a.jsonl"])]


def test_nothing_found_names_all_inputs(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    put(tmp_path / "b" / "x.pdf")
    message = find_collections([tmp_path / "a", tmp_path / "b"]).nothing_found or ""
    assert message.startswith(f"no chunk files below {tmp_path / 'a'}, {tmp_path / 'b'}: looked for ")
    assert "found 1 .pdf, which are not chunk files. Split documents into chunks first" in message


# what is said of inputs before a run


def test_every_input_that_is_missing_or_a_document_is_named_in_one_message(tmp_path: Path) -> None:
    notes = put(tmp_path / "notes.md")
    with pytest.raises(UsageError) as caught:
        read_inputs([tmp_path / "nowhere", notes, tmp_path / "*.csv", put(tmp_path / "a.xlsx")], "CHUNKS")
    message = str(caught.value)
    assert f"{tmp_path / 'nowhere'} does not exist." in message
    assert f"{notes} is a document, not a chunk file. Split documents into chunks first" in message
    assert f"no file or folder matches {tmp_path / '*.csv'}." in message
    assert "is a spreadsheet, not a chunk file. Save it as CSV." in message


@pytest.mark.parametrize("suffix", [".txt", ".md", ".pdf", ".docx", ".html", ".HTML"])
def test_a_document_is_refused_with_how_to_chunk_it(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(UsageError, match="Split documents into chunks first, for example with Docling"):
        read_inputs(put(tmp_path / f"a{suffix}"), "CHUNKS")


def test_an_input_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    file = put(tmp_path / "a.jsonl")
    assert read_inputs([file, file], "CHUNKS") == (file,)


# JSON that holds no records


@pytest.mark.parametrize(
    "value",
    [
        ["text"],
        [{"text": "one"}],
        [{"page_content": "one"}],
        {"chunks": [{"text": "one"}]},
        {"version": 1, "deep": {"a": [1]}, "data": ["one"]},
        {"text": "one", "metadata": {}},
        '{"a": 1}\n{"a": 2}\n',
        '[{"text": "cut off he',
        json.dumps({"long": ["x" * 100] * 1000, "items": [{"text": "one"}]}),
    ],
)
def test_json_with_records_is_a_chunk_file_whatever_its_name(tmp_path: Path, value: Any) -> None:
    assert is_chunk_file(write(tmp_path / "any.json", value))


@pytest.mark.parametrize(
    "value",
    [
        {"name": "package", "version": "1.0.0", "dependencies": {"a": "^1"}, "files": ["lib"]},
        {"compilerOptions": {"strict": True}},
        DATASET_INFO,
        STATE,
        {"data": [1, 2, 3], "items": []},
        [],
        [[1, 2]],
        [1.5],
        "true",
        "",
        "// a comment\n{}",
        '"a string"',
    ],
)
def test_other_json_is_left_out_and_named(tmp_path: Path, value: Any) -> None:
    put(tmp_path / "a.jsonl")
    assert not is_chunk_file(write(tmp_path / "any.json", value))
    discovery = find_collections(tmp_path)
    assert [file.name for each in discovery.collections for file in each.files] == ["a.jsonl"]
    assert discovery.warnings == ("left out: any.json (no records)",)


def test_a_name_that_says_chunks_is_read_whatever_it_holds(tmp_path: Path) -> None:
    assert is_chunk_file(write(tmp_path / "a_chunks.json", "{}"))
    assert is_chunk_file(write(tmp_path / "chunks.json", ""))


def test_a_file_that_was_named_is_read_whatever_it_holds(tmp_path: Path) -> None:
    assert found(write(tmp_path / "package.json", {"name": "x"})) == [("package", ["package.json"])]


def test_compressed_json_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'[{"text": "one"}]'))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b'{"name": "x"}'))
    assert (is_chunk_file(tmp_path / "a.json.gz"), is_chunk_file(tmp_path / "b.json.gz")) == (True, False)


# BEIR


def test_queries_and_judgements_of_beir_are_left_out_and_that_is_said_once(tmp_path: Path) -> None:
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "qrels/dev.tsv"):
        put(tmp_path / "scifact" / name)
    discovery = find_collections(tmp_path)
    assert found(tmp_path / "scifact") == found(tmp_path) == [("scifact", ["corpus.jsonl"])]
    assert discovery.warnings == ("left out: qrels/, queries.jsonl (BEIR queries and judgements)",)


def test_a_folder_with_qrels_as_files_is_beir_too(tmp_path: Path) -> None:
    for name in ("corpus.jsonl.gz", "queries.jsonl.gz", "qrels.tsv", "qrels.dev.tsv"):
        put(tmp_path / name)
    assert [files for _, files in found(tmp_path)] == [["corpus.jsonl.gz"]]


def test_queries_without_a_corpus_are_chunks_like_others(tmp_path: Path) -> None:
    put(tmp_path / "docs" / "queries.jsonl")
    assert found(tmp_path) == [("docs", ["queries.jsonl"])]


# Hugging Face datasets


def test_a_saved_dataset_is_one_collection(tmp_path: Path, seen: list[Event]) -> None:
    folder = save_dataset(tmp_path / "faq", ["one", "two"])
    put(folder / "cache-1f0.arrow")
    discovery = find_collections(folder)
    [collection] = discovery.collections
    assert (collection.name, [file.name for file in collection.files]) == ("faq", ["data-00000-of-00001.arrow"])
    assert discovery.warnings == ("left out: cache-1f0.arrow (not part of the saved dataset)",)
    assert found(tmp_path) == found(folder)
    assert load_chunks(collection, tmp_path / "spool", seen.append).found == 2


def test_a_saved_dataset_of_several_splits_is_one_collection(tmp_path: Path) -> None:
    write(tmp_path / "faq" / "dataset_dict.json", {"splits": ["train", "test"]})
    for split in ("train", "test"):
        save_dataset(tmp_path / "faq" / split, ["one"])
    files = ["test/data-00000-of-00001.arrow", "train/data-00000-of-00001.arrow"]
    assert found(tmp_path / "faq") == found(tmp_path) == [("faq", files)]
    assert found(tmp_path / "faq" / "train") == [("train", files[:1] and ["data-00000-of-00001.arrow"])]


def test_a_link_to_a_saved_dataset_is_followed_once(tmp_path: Path) -> None:
    save_dataset(tmp_path / "elsewhere", ["one"])
    (tmp_path / "chunks").mkdir()
    (tmp_path / "chunks" / "faq").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "elsewhere")
    assert found(tmp_path / "chunks") == [("faq", ["data-00000-of-00001.arrow"])]
