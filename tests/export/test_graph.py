"""`--hnsw`: the Qdrant shard has a search graph, and all else is as it is without."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdrant_edge import Point, Query, QueryRequest, SearchParams, UpdateOperation

from tests.support.points import DIM, make_points
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed, open_output
from ultimate_embedder.cli import main
from ultimate_embedder.errors import StoppedError, UsageError
from ultimate_embedder.events import Event, ExportWritten, GraphBuilding
from ultimate_embedder.export import EXPORTS, ExportSize, estimate_export_bytes, read_export_journal, write_exports
from ultimate_embedder.options import make_config
from ultimate_embedder.output import CollectionOutput
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import HnswGraph, VectorSpec

RECORDS = [{"text": f"text {number}", "id": f"chunk-{number}", "page": number % 10} for number in range(200)]
ONLY_SHARD = ("qdrant",)
GRAPH = HnswGraph(m=8, ef_construct=40)


def write(root: Path, graph: HnswGraph | None, emit: Callable[[Event], None] = lambda event: None) -> CollectionOutput:
    write_exports(make_points(root, RECORDS), root / "docs", ONLY_SHARD, emit, hnsw=graph)
    return CollectionOutput(root / "docs")


def indexed(output: CollectionOutput) -> int:
    """How many vectors are in a graph."""
    with output.open_shard() as shard:
        return int(shard.info().indexed_vectors_count)


def inode(output: CollectionOutput) -> int:
    return output.qdrant.stat().st_ino


def test_every_point_is_in_the_graph_and_found_by_it(tmp_path: Path) -> None:
    output = write(tmp_path, GRAPH)
    assert indexed(output) == len(RECORDS)
    with output.open_shard() as shard:
        vectors = np.random.default_rng(0).standard_normal((len(RECORDS), DIM)).astype("f4")
        for row in range(0, len(RECORDS), 20):
            wanted = Query.Nearest(vectors[row].tolist())
            exact, found = (
                shard.query(QueryRequest(query=wanted, limit=1, with_payload=True, params=SearchParams(exact=each)))
                for each in (True, False)
            )
            assert found[0].payload == exact[0].payload
            assert found[0].score == pytest.approx(1.0, abs=1e-5)


def test_without_it_search_is_exact(tmp_path: Path) -> None:
    assert indexed(write(tmp_path, None)) == 0


def test_it_is_told_that_the_graph_is_being_built(tmp_path: Path, seen: list[Event]) -> None:
    write(tmp_path, GRAPH, seen.append)
    first = next(event for event in seen if isinstance(event, GraphBuilding))
    assert (first.collection, first.kind, first.points, first.graph) == ("docs", "qdrant", len(RECORDS), GRAPH)
    assert isinstance(seen[-1], ExportWritten)


def test_a_shard_is_written_again_only_for_another_graph(tmp_path: Path) -> None:
    first = inode(write(tmp_path, GRAPH))
    assert inode(write(tmp_path, GRAPH)) == first
    assert read_export_journal(tmp_path / "docs")["qdrant"]["hnsw"] == "m=8,ef_construct=40"
    assert indexed(write(tmp_path, HnswGraph(m=4, ef_construct=40))) == len(RECORDS)
    assert read_export_journal(tmp_path / "docs")["qdrant"]["hnsw"] == "m=4,ef_construct=40"
    assert indexed(write(tmp_path, None)) == 0
    assert "hnsw" not in read_export_journal(tmp_path / "docs")["qdrant"]


def test_a_run_that_has_to_stop_does_not_wait_for_the_graph(tmp_path: Path) -> None:
    stop = StopSwitch()
    points = make_points(tmp_path, RECORDS, stop=stop)

    def stop_at_graph(event: Event) -> None:
        if isinstance(event, GraphBuilding):
            stop.stop("the deadline is near")

    with pytest.raises(StoppedError, match="deadline"):
        write_exports(points, tmp_path / "docs", ONLY_SHARD, stop_at_graph, hnsw=GRAPH)
    assert not (tmp_path / "docs" / "qdrant").exists()


def test_the_room_for_it_is_counted_before_anything_is_computed() -> None:
    spec, size = [VectorSpec("", 384)], ExportSize(rows=10_000, vector_bytes=0, blocked_bytes=10_000 * 128)
    plain = estimate_export_bytes(ONLY_SHARD, size, spec)
    graph = estimate_export_bytes(ONLY_SHARD, ExportSize(10_000, 0, blocked_bytes=10_000 * 128, graph=GRAPH), spec)
    assert graph > 2 * plain
    others = [export.kind for export in EXPORTS if export.kind != "qdrant"]
    assert estimate_export_bytes(others, size, spec) == estimate_export_bytes(
        others, ExportSize(10_000, 0, blocked_bytes=10_000 * 128, graph=GRAPH), spec
    )


# the option


@pytest.mark.parametrize(
    ("value", "graph"),
    [
        (None, None),
        (False, None),
        (True, HnswGraph()),
        ("m=32", HnswGraph(m=32)),
        (" ef_construct=64 , m=8", HnswGraph(8, 64)),
        ({"m": 8}, HnswGraph(m=8)),
    ],
)
def test_values_of_the_option(tmp_path: Path, value: Any, graph: HnswGraph | None) -> None:
    (tmp_path / "chunks").mkdir()
    assert make_config(tmp_path / "chunks", tmp_path / "out", hnsw=value).hnsw == graph


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("chunks", "--hnsw chunks: write m=16,ef_construct=100, for example, or --hnsw alone."),
        ("m", "--hnsw m: write m=16"),
        ("m=x", "--hnsw m=x: write m=16"),
        ("m=1", "--hnsw m=1: must be between 2 and 512."),
        ("ef_construct=99999", "--hnsw ef_construct=99999: must be between 4 and 10000."),
        (16, "--hnsw 16: not text"),
        ({"ef": 3}, "--hnsw ef=3: write m=16"),
    ],
)
def test_values_that_make_no_sense(tmp_path: Path, value: Any, words: str) -> None:
    (tmp_path / "chunks").mkdir()
    with pytest.raises(UsageError) as caught:
        make_config(tmp_path / "chunks", tmp_path / "out", hnsw=value)
    assert str(caught.value).startswith(words)


def test_a_graph_without_the_export_that_has_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chunks").mkdir()
    with pytest.raises(UsageError, match="--export leaves out"):
        make_config(tmp_path / "chunks", tmp_path / "out", hnsw=True, exports="npy")


def test_a_run_with_the_flag_alone_and_another_that_skips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chunks = tmp_path / "chunks" / "docs"
    chunks.mkdir(parents=True)
    (chunks / "a_chunks.json").write_text(json.dumps(RECORDS[:50]), encoding="utf-8")
    command = ["embed", str(tmp_path / "chunks"), "--output", str(tmp_path / "out"), "--export", "qdrant"]
    command += ["--models", str(tiny_model("bert")), "--devices", "cpu"]
    assert main(command) == 0
    assert main([*command, "--skip-existing", "--hnsw"]) == 0
    assert "docs: building the search graph of 50 points (m=16,ef_construct=100)" in capsys.readouterr().err
    output = open_output(tmp_path / "out")["docs"]
    assert indexed(output) == 50
    options: dict[str, Any] = {"exports": "qdrant", "hnsw": True, "skip_existing": True, "quiet": True}
    again = embed(tmp_path / "chunks", tmp_path / "out", models=[str(tiny_model("bert"))], **options)
    assert again.collections[0].status == "skipped_existing"
    assert main(["verify", str(tmp_path / "out")]) == 0


# opening it


@pytest.mark.parametrize("graph", [None, GRAPH])
def test_an_opened_shard_may_be_changed_and_the_output_is_not(tmp_path: Path, graph: HnswGraph | None) -> None:
    output = write(tmp_path, graph)
    before = {path: path.read_bytes() for path in output.qdrant.rglob("*") if path.is_file()}
    with output.open_shard() as shard:
        shard.update(UpdateOperation.upsert_points([Point(id=1, vector=[0.1] * DIM)]))
        shard.flush()
    assert {path: path.read_bytes() for path in output.qdrant.rglob("*") if path.is_file()} == before


def test_a_collection_without_a_shard_says_how_to_make_one(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="Run embed again with --export qdrant"),
        CollectionOutput(tmp_path).open_shard(),
    ):
        pass
