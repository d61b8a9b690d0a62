"""The list of exports: one module and one entry make an export, and everything else follows."""

from __future__ import annotations

import dataclasses
import random
import shutil
import string
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import WriteChunks
from tests.support.points import random_vectors
from tests.support.tiny_models import tiny_model
from ultimate_embedder.chunks import find_collections, load_chunks
from ultimate_embedder.config import RunConfig
from ultimate_embedder.errors import UsageError
from ultimate_embedder.events import CollectionFinished, Event, ExportWritten
from ultimate_embedder.export import (
    DEFAULT_EXPORTS,
    EXPORT_KINDS,
    EXPORTS,
    ExportFormat,
    ExportSize,
    Points,
    estimate_export_bytes,
    find_export,
    formats,
    has_exports,
    measure_payloads,
    write_exports,
)
from ultimate_embedder.files import disk_bytes
from ultimate_embedder.options import make_config
from ultimate_embedder.pipeline import run
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import UNNAMED, VectorSpec

ONE = (VectorSpec(UNNAMED, 64),)
TWO = (VectorSpec("bert", 64), VectorSpec("roberta", 48))
DIM = 64
NO_TEXT = ExportSize(rows=1000, vector_bytes=0)


def write_toy(points: Points, path: Path) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for block in points.blocks():
            file.writelines(f"{chunk_id}\n" for chunk_id in block.ids)


TOY = ExportFormat(
    kind="toy",
    file_name=lambda vectors: f"toy-{len(vectors)}.txt",
    write=write_toy,
    size=lambda size: 10 * size.vector_bytes,
)


@pytest.fixture
def with_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "EXPORTS", (*EXPORTS, TOY))


@pytest.fixture
def config(write_chunks: WriteChunks, tmp_path: Path) -> RunConfig:
    chunks = write_chunks([{"text": f"text {number}", "id": f"chunk-{number}"} for number in range(5)])
    made = make_config(chunks, tmp_path / "out", models=[str(tiny_model("bert"))], devices="cpu")
    return dataclasses.replace(made, exports=("npy", "toy"))


def test_the_kinds_are_those_in_the_list_and_all_but_json_lines_are_written_by_default() -> None:
    assert tuple(export.kind for export in EXPORTS) == EXPORT_KINDS == ("npy", "parquet", "jsonl", "qdrant")
    assert DEFAULT_EXPORTS == ("npy", "parquet", "qdrant")


@pytest.mark.parametrize(
    ("kind", "name", "name_of_two"),
    [
        ("npy", "embeddings.npy", "embeddings"),
        ("parquet", "chunks.parquet", "chunks.parquet"),
        ("jsonl", "points.jsonl", "points.jsonl"),
        ("qdrant", "qdrant", "qdrant"),
    ],
)
def test_an_export_has_its_name_in_the_output(kind: str, name: str, name_of_two: str) -> None:
    assert (find_export(kind).file_name(ONE), find_export(kind).file_name(TWO)) == (name, name_of_two)


def test_an_unknown_kind_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        find_export("parket")
    assert str(caught.value) == "--export parket: not one of npy, parquet, jsonl, qdrant. Did you mean parquet?"


@pytest.mark.parametrize(("kinds", "sizes"), [((), 0), (("npy",), 1), (("jsonl",), 3), (("npy", "jsonl"), 4)])
def test_the_size_of_exports_is_estimated_in_sizes_of_the_vectors(kinds: tuple[str, ...], sizes: int) -> None:
    assert estimate_export_bytes(kinds, NO_TEXT, ONE) == sizes * 1000 * 64 * 4
    assert estimate_export_bytes(kinds, NO_TEXT, TWO) == sizes * 1000 * (64 + 48) * 4


@pytest.mark.parametrize(("alphabet", "text_bytes"), [("words", 1500), ("noise", 100)])
def test_the_size_of_each_export_is_estimated_well_with_its_texts(
    write_chunks: WriteChunks, tmp_path: Path, alphabet: str, text_bytes: int
) -> None:
    """Whether texts compress well or not at all."""
    rng = random.Random(0)
    words = ["".join(rng.choices(string.ascii_lowercase, k=6)) for _ in range(300)]
    texts = [
        " ".join(rng.choices(words, k=text_bytes // 7))
        if alphabet == "words"
        else "".join(rng.choices(string.printable[:95], k=text_bytes))
        for _ in range(1200)
    ]
    found = find_collections(write_chunks([{"text": text, "page": 1} for text in texts])).collections[0]
    loaded = load_chunks(found, tmp_path / "chunks.arrow", lambda event: None)
    points = Points("docs", "target", loaded.table, random_vectors(tmp_path, loaded.table.keys))
    write_exports(points, tmp_path / "out", EXPORT_KINDS, lambda event: None)
    payloads = measure_payloads("docs", loaded.table)
    for kind, export in ((export.kind, export) for export in EXPORTS):
        path = tmp_path / "out" / export.file_name(points.vectors)
        taken = disk_bytes(path) if path.is_dir() else path.stat().st_size
        estimated = estimate_export_bytes((kind,), payloads, points.vectors)
        assert 0.8 * taken < estimated < 1.25 * taken, kind


@pytest.mark.usefixtures("with_toy")
def test_an_export_that_is_added_to_the_list_is_found_and_estimated() -> None:
    assert find_export("toy") is TOY
    with pytest.raises(UsageError, match="not one of npy, parquet, jsonl, qdrant, toy"):
        find_export("toi")
    assert estimate_export_bytes(("npy", "toy"), NO_TEXT, ONE) == 11 * 1000 * 64 * 4


@pytest.mark.usefixtures("with_toy")
def test_an_export_that_is_added_to_the_list_is_written_by_a_run(config: RunConfig, seen: list[Event]) -> None:
    run(config, seen.append, StopSwitch())
    written = {event.exported.kind: event.exported for event in seen if isinstance(event, ExportWritten)}
    assert list(written) == ["npy", "toy"]
    assert written["toy"].path == config.output / "docs" / "toy-1.txt"
    assert written["toy"].path.read_text("utf-8").split() == [f"chunk-{number}" for number in range(5)]
    assert has_exports(config.output / "docs", config.exports)


@pytest.mark.usefixtures("with_toy")
@pytest.mark.parametrize(("missing_bytes", "status"), [(0, "completed"), (1, "failed")])
def test_an_export_that_is_added_to_the_list_counts_in_the_check_of_free_disk_space(
    config: RunConfig, seen: list[Event], monkeypatch: pytest.MonkeyPatch, missing_bytes: int, status: str
) -> None:
    needed_bytes = (1 + 1 + 10) * 5 * DIM * 4  # the store, npy, toy
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed_bytes - missing_bytes))
    run(config, seen.append, StopSwitch())
    (finished,) = [event for event in seen if isinstance(event, CollectionFinished)]
    assert finished.status == status


def test_the_list_is_light_enough_for_a_help_text() -> None:
    words = "import sys, ultimate_embedder.export; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", words], capture_output=True, check=True, text=True).stdout.split()
    assert not {"torch", "numpy", "pyarrow", "qdrant_edge", "qdrant_client"} & set(loaded)
