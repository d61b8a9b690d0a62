"""Data in memory becomes a file that is read like any other; what is no data is refused in a sentence."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ultimate_embedder.chunks.memory import write_in_memory
from ultimate_embedder.chunks.read import read_records
from ultimate_embedder.config import FieldChoice, InMemory, read_inputs
from ultimate_embedder.errors import StoppedError, UsageError
from ultimate_embedder.types import Rejected

TWO = [{"text": "one", "n": 1}, {"text": "two", "n": None}]
GIVE = "Give a path, a list of texts or dicts, a DataFrame, an Arrow table or a Dataset."


def spool(data: Any, folder: Path, choice: FieldChoice | None = None) -> list[Any]:
    """What is read of data after it was written to a file."""
    [given] = read_inputs(data, "CHUNKS")
    assert isinstance(given, InMemory)
    path = write_in_memory(given.data, folder, lambda: None, choice)
    return [item[1] for item in read_records(path, path.name) if not isinstance(item, Rejected)]


def refusal(data: Any, folder: Path) -> str:
    with pytest.raises(UsageError) as caught:
        spool(data, folder)
    return str(caught.value)


@dataclasses.dataclass
class Document:
    text: str
    page: int


class Node:
    def model_dump(self) -> dict[str, Any]:
        return {"page_content": "one", "metadata": {"day": datetime.date(2024, 2, 29)}}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (["one", "two"], ["one", "two"]),
        (("one",), ["one"]),
        (TWO, TWO),
        ((record for record in TWO), TWO),
        (np.array(["one", "two"]), ["one", "two"]),
        (pa.array(["one", "two"]), ["one", "two"]),
        (pa.chunked_array([["one"], ["two"]]), ["one", "two"]),
        (pa.Table.from_pylist(TWO), TWO),
        (pa.RecordBatch.from_pylist(TWO), TWO),
        (pa.Table.from_pylist(TWO).to_reader(), TWO),
        ([Document("one", 3)], [{"text": "one", "page": 3}]),
        ([Node()], [{"page_content": "one", "metadata": {"day": "2024-02-29"}}]),
        (["\ud800", 3, None], ["\ud800", 3, None]),
    ],
)
def test_data_is_read_as_it_was(tmp_path: Path, data: Any, expected: list[Any]) -> None:
    assert spool(data, tmp_path) == expected


@pytest.mark.parametrize(
    ("record", "choice", "text"),
    [
        ({"content": b"one", "key": b"\1"}, FieldChoice(), ["content"]),
        ({"body": b"one", "text": "two"}, FieldChoice(text="body"), ["body"]),
        ({"meta": {"body": b"one"}}, FieldChoice(text="meta.body"), ["meta", "body"]),
    ],
)
def test_a_text_of_bytes_is_text_wherever_it_is(
    tmp_path: Path, record: dict[str, Any], choice: FieldChoice, text: list[str]
) -> None:
    (read,) = spool([record], tmp_path, choice)
    assert read.get("key") in (None, "01")
    for key in text:
        read = read[key]
    assert read == "one"


def test_values_that_json_has_not_are_converted(tmp_path: Path) -> None:
    record = {
        "text": b"one",
        "numpy": np.float32(0.5),
        "array": np.arange(2),
        "time": datetime.datetime(2024, 2, 29, 12, 0),
        "raw": b"\xff",
        "pair": (1, 2),
        3: "three",
    }
    assert spool([record], tmp_path) == [
        {
            "text": "one",
            "numpy": 0.5,
            "array": [0, 1],
            "time": "2024-02-29 12:00:00",
            "raw": "ff",
            "pair": [1, 2],
            "3": "three",
        }
    ]


def test_a_generator_that_raises_is_told_with_what_it_raised(tmp_path: Path) -> None:
    def texts() -> Any:
        yield "one"
        raise KeyError("body")

    assert refusal(texts(), tmp_path) == (
        "chunks cannot be read: KeyError after 1 items ('body'). Nothing was computed."
    )


def endless() -> dict[str, Any]:
    record: dict[str, Any] = {"text": "one"}
    record["self"] = record
    return record


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, f"chunks is of the type int. {GIVE}"),
        (None, f"chunks is None. {GIVE}"),
        (b"text", f"chunks is of the type bytes. {GIVE}"),
        ({"text": ["a"]}, "chunks is a dict with the keys text. Give a list of dicts, one per chunk, or a DataFrame."),
        ([], "chunks is an empty list. Give at least one text or dict."),
        (iter([]), "chunks has no items. Give at least one text or dict."),
        (pa.table({"text": []}), "chunks has no rows. Give at least one."),
        ([object()], "item 0 of chunks is of the type object. Give strings or dicts."),
        ([endless()], "item 0 of chunks is nested too deeply, or contains itself."),
        (["a text", Path("a.jsonl")], "chunks mixes paths and other items. Give either: strings in a list are texts."),
        (
            "What does it do?",
            "'What does it do?' is not a path that exists. If it is a text, put it in a list: embed([text], ...).",
        ),
        ("a\0b", "a\0b does not exist. Give a chunk file, or the folder that holds your chunk files."),
    ],
)
def test_what_is_no_data_is_refused_in_a_sentence(tmp_path: Path, data: Any, message: str) -> None:
    assert refusal(data, tmp_path) == message


def test_names_of_files_in_a_list_are_not_taken_for_texts(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('"one"\n')
    assert "To embed files, give Path objects" in refusal([str(file)], tmp_path)
    assert read_inputs([file, file.parent], "CHUNKS") == (file, file.parent)
    assert read_inputs(str(file), "CHUNKS") == (file,)


def test_writing_stops_when_the_run_must(tmp_path: Path) -> None:
    def check() -> None:
        raise StoppedError("interrupted")

    for data in (["text"] * 2000, pa.table({"text": ["one"]})):
        with pytest.raises(StoppedError):
            write_in_memory(data, tmp_path, check)


def test_a_pandas_frame_is_its_rows_with_an_index_that_has_a_name(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {"text": ["one", "two"], "n": [1.5, float("nan")], "day": [pd.Timestamp("2024-02-29"), pd.NaT], "o": [[1], "x"]}
    )
    rows = [
        {"text": "one", "n": 1.5, "day": "2024-02-29 00:00:00", "o": [1]},
        {"text": "two", "n": None, "day": None, "o": "x"},
    ]
    assert spool(frame, tmp_path) == rows
    assert spool(frame.set_axis(["i", "j"]), tmp_path) == rows
    named = frame.set_axis(pd.Index(["i", "j"], name="chunk_id"))
    assert [row["chunk_id"] for row in spool(named, tmp_path)] == ["i", "j"]
    assert spool(frame["text"], tmp_path) == ["one", "two"]


def test_a_polars_frame_is_its_rows(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"text": ["one", "two"], "n": [1, None], "day": [datetime.date(2024, 2, 29), None]})
    rows = [{"text": "one", "n": 1, "day": "2024-02-29"}, {"text": "two", "n": None, "day": None}]
    assert spool(frame, tmp_path) == spool(frame.lazy(), tmp_path) == rows
    assert spool(frame["text"], tmp_path) == ["one", "two"]


def test_a_dataset_is_its_rows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(TWO)
    assert spool(data, tmp_path) == spool(data.to_iterable_dataset(), tmp_path) == TWO
    assert spool(data.select([1]), tmp_path) == TWO[1:]
    assert "chunks has several splits (train). Give one of them" in refusal(datasets.DatasetDict(train=data), tmp_path)
