"""An output opened from Python: vectors, chunks, points, and what notebooks show of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.qdrant_server import QdrantServer
from tests.support.tiny_models import tiny_model
from ultimate_embedder import OpenedCollection, embed, open_output, upload
from ultimate_embedder.errors import UsageError
from ultimate_embedder.files import write_json

MODELS = [str(tiny_model(architecture)) for architecture in ("bert", "mpnet")]
RECORDS = [{"id": f"c{number}", "text": f"text {number}", "metadata": {"page": number}} for number in range(7)]
MISCHIEF = "<b>docs&"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output of each kind: one model, named vectors, fused vectors."""
    root = tmp_path_factory.mktemp("outputs")
    write_json(root / "chunks" / MISCHIEF / "a_chunks.json", RECORDS)
    options: dict[str, Any] = {"exports": ["npy", "parquet"], "devices": "cpu", "quiet": True}
    embed(root / "chunks", root / "one", models=MODELS[0], **options)
    embed(root / "chunks", root / "named", models=MODELS, **options)
    embed(root / "chunks", root / "concat", models=MODELS, fusion="concat", **options)
    return root


@pytest.fixture
def one(made: Path, tmp_path: Path) -> OpenedCollection:
    """A copy, to be changed."""
    return open_output(shutil.copytree(made / "one", tmp_path / "one"))[MISCHIEF]


def test_vectors_are_memory_mapped(one: OpenedCollection) -> None:
    vectors = one.vectors()
    assert isinstance(vectors, np.memmap)
    assert (vectors.shape, vectors.dtype) == ((7, 64), np.float32)
    assert len(one) == 7
    assert one.models == ["tiny-bert"]
    assert np.array_equal(one.vectors("tiny-bert", check=True), vectors)


def remove(path: Path) -> None:
    path.unlink()


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize("damage", [remove, shorten])
def test_without_a_good_npy_export_vectors_are_read_from_parquet(one: OpenedCollection, damage: Any) -> None:
    expected = np.array(one.vectors())
    damage(one.embeddings)
    assert type(one.vectors()) is np.ndarray
    assert np.array_equal(one.vectors(), expected)
    one.points_file.unlink()
    with pytest.raises(
        UsageError, match=r"embeddings.npy is missing, or not of the size that embed recorded\. Run embed"
    ):
        one.vectors()


def test_a_checksum_that_does_not_match_is_noticed_if_that_is_asked_for(one: OpenedCollection) -> None:
    expected = np.array(one.vectors())
    changed = np.lib.format.open_memmap(one.embeddings, mode="r+")
    changed[0, 0] += 1
    changed.flush()
    assert isinstance(one.vectors(), np.memmap)
    assert np.array_equal(one.vectors(check=True), expected)


def test_an_npy_export_of_other_chunks_is_not_mixed_with_the_parquet_export(made: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "chunks" / "docs" / "a_chunks.json", RECORDS)
    options: dict[str, Any] = {"models": MODELS[0], "devices": "cpu", "quiet": True}
    embed(tmp_path / "chunks", tmp_path / "out", exports="npy", **options)
    write_json(tmp_path / "chunks" / "docs" / "a_chunks.json", RECORDS[::-1])
    embed(tmp_path / "chunks", tmp_path / "out", exports="parquet", **options)
    docs = open_output(tmp_path / "out")["docs"]
    assert docs.chunks().column("chunk_id")[0].as_py() == "c6"
    first = next(docs.points()).vector
    assert isinstance(first, np.ndarray)
    assert np.allclose(docs.vectors()[0], first)


def test_named_vectors_are_read_by_the_name_of_the_model(made: Path) -> None:
    named = open_output(made / "named")[MISCHIEF]
    assert not np.allclose(named.vectors("tiny-bert"), named.vectors("tiny-mpnet"))
    with pytest.raises(
        UsageError, match=r"has vectors of tiny-bert, tiny-mpnet\. Name a model: vectors\('tiny-bert'\)"
    ):
        named.vectors()
    with pytest.raises(UsageError, match=r"has no vectors of 'bert'\. Its models: tiny-bert, tiny-mpnet\."):
        named.vectors("bert")


def test_fused_vectors_have_no_name(made: Path) -> None:
    fused = open_output(made / "concat")[MISCHIEF]
    assert fused.vectors().shape == (7, 128)
    with pytest.raises(UsageError, match="made by tiny-bert and tiny-mpnet: call vectors\\(\\) without a name"):
        fused.vectors("tiny-bert")


def test_chunks_are_an_arrow_table_in_the_order_of_the_vectors(one: OpenedCollection) -> None:
    table = one.chunks()
    assert table.column("chunk_id").to_pylist() == [each["id"] for each in RECORDS]
    assert not [name for name in table.column_names if "vector" in name]


def test_chunks_are_a_data_frame(one: OpenedCollection) -> None:
    pytest.importorskip("pandas")
    frame = one.to_pandas()
    assert list(frame.columns) == ["chunk_id", "text", "metadata", "extra", "file", "position", "point_id"]
    assert frame["metadata"][3] == {"page": 3}


def test_chunks_without_metadata_are_a_data_frame(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    embed(["one", {"text": "two", "metadata": {"page": 3}, "a": 1}], tmp_path / "out", models=MODELS[0], quiet=True)
    frame = open_output(tmp_path / "out")["chunks"].to_pandas()
    assert list(frame["metadata"]) == [None, {"page": 3}]
    assert list(frame["extra"]) == [{}, {"a": 1}]


def test_points_have_id_vector_and_payload(made: Path) -> None:
    (first, *others) = open_output(made / "named")[MISCHIEF].points()
    assert len(others) == 6
    assert isinstance(first.vector, dict)
    assert {name: each.shape for name, each in first.vector.items()} == {"tiny-bert": (64,), "tiny-mpnet": (64,)}
    assert first.payload["text"] == "text 0"
    single = next(open_output(made / "one")[MISCHIEF].points())
    assert isinstance(single.vector, np.ndarray)
    assert single.id == first.id


def test_what_needs_the_parquet_export_says_so(one: OpenedCollection) -> None:
    one.points_file.unlink()
    for read in (one.chunks, lambda: next(one.points())):
        with pytest.raises(UsageError, match="has no parquet export, which the chunks are read from"):
            read()


@pytest.mark.parametrize("folder", [None, 3])
def test_what_is_no_folder_is_refused_in_words(folder: Any) -> None:
    with pytest.raises(UsageError, match="give the folder of an output"):
        open_output(folder)


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with QdrantServer() as running:
        yield running


def test_collections_are_uploaded_from_python(made: Path, server: QdrantServer) -> None:
    output = open_output(made / "one")
    for reports in (
        output[MISCHIEF].upload(server.url, collection="docs", quiet=True),
        output.upload(server.url, collection="docs", quiet=True),
        upload(made / "one", server.url, collection="docs", quiet=True),
    ):
        assert [(report.target, report.counted) for report in reports] == [("docs", 7)]


def test_notebooks_show_small_tables_with_escaped_names(made: Path) -> None:
    output = open_output(made / "named")
    assert output.summary is not None
    for shown in (output._repr_html_(), output[MISCHIEF]._repr_html_(), output.summary._repr_html_()):
        assert '<td style="text-align: left">&lt;b&gt;docs&amp;</td>' in shown
        assert "<b>docs" not in shown
        assert len(shown) < 3000
    assert repr(output.summary) == f"<RunSummary: {MISCHIEF}: 7 of 7 chunks embedded>"
    assert repr(output) == f"<Output {made / 'named'}: {MISCHIEF}>"
    assert repr(output[MISCHIEF]).startswith(f"<{MISCHIEF}: 7 points, tiny-bert 64, tiny-mpnet 64 dims, in ")
