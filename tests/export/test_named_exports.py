"""Exports of several models: what each fusion leaves in every format, and what a change of mind costs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from qdrant_client import models
from qdrant_edge import CountRequest, EdgeShard, Query, QueryRequest
from sentence_transformers import SentenceTransformer

from tests.support.damage import resealed
from tests.support.qdrant_server import QdrantServer, StoredCollection
from tests.support.tiny_models import tiny_model
from tests.support.uploads import upload
from ultimate_embedder import embed
from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import UploadError, UsageError
from ultimate_embedder.events import Event
from ultimate_embedder.export import EXPORT_KINDS, PointsFile, UploadReport, point_id
from ultimate_embedder.files import file_sha256
from ultimate_embedder.find import open_query_encoder
from ultimate_embedder.output import open_output
from ultimate_embedder.summary import CollectionSummary
from ultimate_embedder.types import VectorSpec
from ultimate_embedder.vectors import FUSIONS
from ultimate_embedder.verify import verify_output

BERT, ROBERTA = "tiny-bert", "tiny-xlm-roberta"
DIMS = {BERT: 64, ROBERTA: 48}
SPECS = tuple(VectorSpec(name, dim) for name, dim in DIMS.items())
SHARES = {BERT: 0.25, ROBERTA: 0.75}
RECORDS = [{"text": f"Chunk {n} says " + f"{n * 7} " * (n % 20), "id": f"chunk-{n}", "page": n} for n in range(40)]
TEXTS = [str(record["text"]) for record in RECORDS]
IDS = [point_id("docs", str(record["id"])) for record in RECORDS]
LONGEST = max(range(len(TEXTS)), key=lambda row: len(TEXTS[row]))
NO_VECTOR = "the model gave no usable vector for this text (not finite, or of no length)"
TARGET = "docs__tiny-bert__tiny-xlm-roberta__named"
COSINE = models.Distance.COSINE
OFFLINE = HubAccess(offline=True)
FILES: tuple[str, ...] = ("npy", "parquet", "jsonl")  # quicker to write, copy and checksum than a shard


def model_folders() -> dict[str, Path]:
    return {BERT: tiny_model("bert", hidden=DIMS[BERT]), ROBERTA: tiny_model("xlm-roberta", hidden=DIMS[ROBERTA])}


def both_models() -> list[str]:
    return [f"{folder}={SHARES[name]}" for name, folder in model_folders().items()]


def run(chunks: Path, output: Path, **options: Any) -> CollectionSummary:
    """Embed with both models on the CPU; gives the summary of the first collection."""
    ours = {"models": both_models(), "devices": "cpu", "exports": FILES, "quiet": True}
    return embed(chunks, output, **{**ours, **options}).collections[0]


def write_chunks(root: Path, **collections: Any) -> Path:
    for name, records in collections.items():
        (root / name).mkdir(parents=True)
        (root / name / "a_chunks.json").write_text(json.dumps(records), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chunks(tmp_path_factory.mktemp("chunks"), docs=RECORDS)


@pytest.fixture(scope="module")
def named(chunks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of one run that keeps a vector a model; not to be changed."""
    output = tmp_path_factory.mktemp("named") / "out"
    assert run(chunks, output, exports=EXPORT_KINDS).status == "completed"
    return output


@pytest.fixture(scope="module")
def files(chunks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without a shard."""
    output = tmp_path_factory.mktemp("files") / "out"
    assert run(chunks, output).status == "completed"
    return output


@pytest.fixture
def out(files: Path, tmp_path: Path) -> Path:
    """An output of named vectors, without a shard, that a test may change."""
    return shutil.copytree(files, tmp_path / "out")


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    """What sentence-transformers makes of the same texts."""
    return {name: encode_with_reference(folder) for name, folder in model_folders().items()}


def encode_with_reference(folder: Path) -> np.ndarray:
    return np.asarray(SentenceTransformer(str(folder), device="cpu").encode(TEXTS), np.float32)


def least_cosine(some: np.ndarray, others: np.ndarray) -> float:
    lengths = np.linalg.norm(some, axis=1) * np.linalg.norm(others, axis=1)
    return float(((some * others).sum(axis=1) / lengths).min())


def npy_vectors(output: Path) -> dict[str, np.ndarray]:
    return {path.stem: np.load(path) for path in (output / "docs" / "embeddings").iterdir()}


def parquet_vectors(output: Path, column: str) -> np.ndarray:
    return np.array(pq.read_table(output / "docs" / "chunks.parquet")[column].to_pylist(), np.float32)


def jsonl_points(output: Path) -> list[dict[str, Any]]:
    lines = (output / "docs" / "points.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def summary_of(output: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text("utf-8"))
    return summary


# named: each format


def test_the_npy_is_a_folder_with_the_vectors_that_each_model_gives_by_itself(
    named: Path, reference: dict[str, np.ndarray]
) -> None:
    written = npy_vectors(named)
    assert {name: each.shape for name, each in written.items()} == {name: (40, dim) for name, dim in DIMS.items()}
    for name, vectors in written.items():
        assert vectors.dtype == np.float32
        assert least_cosine(vectors, reference[name]) > 0.99999


def test_the_parquet_has_a_column_of_vectors_a_model(named: Path) -> None:
    schema = pq.read_schema(named / "docs" / "chunks.parquet")
    assert {name for name in schema.names if name.startswith("vector")} == {f"vector_{name}" for name in DIMS}
    for name, dim in DIMS.items():
        assert schema.field(f"vector_{name}").type == pa.list_(pa.float32(), dim)
        assert np.array_equal(parquet_vectors(named, f"vector_{name}"), npy_vectors(named)[name])


def test_the_parquet_knows_its_vectors_by_name(named: Path) -> None:
    described = PointsFile.open(named / "docs" / "chunks.parquet")
    assert (described.target, described.points, described.vectors) == (TARGET, 40, SPECS)
    ((ids, vectors, payloads),) = described.batches(100)
    assert ids == IDS
    assert [payload["text"] for payload in payloads] == TEXTS
    assert all(np.array_equal(vectors[name], each) for name, each in npy_vectors(named).items())


def test_a_line_of_the_jsonl_has_an_object_of_vectors(named: Path) -> None:
    points = jsonl_points(named)
    assert [point["id"] for point in points] == IDS
    assert {tuple(point["vector"]) for point in points} == {tuple(DIMS)}
    for name, vectors in npy_vectors(named).items():
        assert np.array_equal(np.array([point["vector"][name] for point in points], np.float32), vectors)


@pytest.fixture(scope="module")
def shard(named: Path) -> Iterator[EdgeShard]:
    opened = EdgeShard.load(str(named / "docs" / "qdrant"))
    yield opened
    opened.close()


@pytest.mark.parametrize("name", DIMS)
def test_in_the_shard_every_chunk_is_nearest_to_itself_by_each_name(named: Path, shard: EdgeShard, name: str) -> None:
    assert shard.count(CountRequest(exact=True)) == 40
    for point, vector in zip(IDS, npy_vectors(named)[name], strict=True):
        (nearest,) = shard.query(QueryRequest(query=Query.Nearest(vector.tolist(), using=name), limit=1))
        assert str(nearest.id) == point
        assert nearest.score == pytest.approx(1, abs=1e-5)


def test_a_point_of_the_shard_holds_both_vectors_and_its_payload(named: Path, shard: EdgeShard) -> None:
    records = {str(record.id): record for record in shard.retrieve(list(IDS), with_payload=True, with_vector=True)}
    for row, point in enumerate(IDS):
        origin = {"chunk_id": f"chunk-{row}", "collection": "docs", "file": "a_chunks.json"}
        assert records[point].payload == {**RECORDS[row], **origin}
        held: Any = records[point].vector
        assert set(held) == set(DIMS)
        for name, vectors in npy_vectors(named).items():
            np.testing.assert_allclose(held[name], vectors[row], atol=1e-6)


def test_the_summary_tells_weights_and_vectors(named: Path) -> None:
    (collection,) = summary_of(named)["collections"]
    assert collection["fusion"] == {"method": "named", "weights": SHARES, "vectors": [asdict(spec) for spec in SPECS]}
    assert collection["target_qdrant_collection"] == TARGET
    assert [(each["model"], each["dim"]) for each in collection["models"]] == list(DIMS.items())


# one vector from several models


def test_concat_is_one_vector_whose_dot_product_is_the_weighted_sum_of_cosines(
    chunks: Path, out: Path, reference: dict[str, np.ndarray]
) -> None:
    run(chunks, out, fusion="concat")
    vectors = np.load(out / "docs" / "embeddings.npy")
    assert vectors.shape == (40, 64 + 48)
    assert PointsFile.open(out / "docs" / "chunks.parquet").vectors == (VectorSpec("", 64 + 48),)
    assert np.array_equal(parquet_vectors(out, "vector"), vectors)
    assert np.array_equal(np.array([point["vector"] for point in jsonl_points(out)], np.float32), vectors)
    expected = sum(SHARES[name] * (each @ each.T) for name, each in reference.items())
    np.testing.assert_allclose(vectors @ vectors.T, expected, atol=1e-5)


def test_concat_is_searched_in_the_shard_without_a_name(chunks: Path, out: Path) -> None:
    run(chunks, out, fusion="concat", exports=["npy", "qdrant"])
    opened = EdgeShard.load(str(out / "docs" / "qdrant"))
    for point, vector in zip(IDS, np.load(out / "docs" / "embeddings.npy"), strict=True):
        (nearest,) = opened.query(QueryRequest(query=Query.Nearest(vector.tolist()), limit=1))
        assert str(nearest.id) == point
    opened.close()


def test_an_average_of_equal_dimensions_is_one_unit_vector(
    chunks: Path, tmp_path: Path, reference: dict[str, np.ndarray]
) -> None:
    other = tiny_model("mpnet", hidden=DIMS[BERT])
    words = [f"{model_folders()[BERT]}=1", f"{other}=3"]
    done = run(chunks, tmp_path / "out", models=words, fusion="weighted_average")
    assert done.target_qdrant_collection == "docs__tiny-bert__tiny-mpnet__weighted_average"
    vectors = np.load(tmp_path / "out" / "docs" / "embeddings.npy")
    mean = 0.25 * reference[BERT] + 0.75 * encode_with_reference(other)
    assert vectors.shape == (40, DIMS[BERT])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert least_cosine(vectors, mean) > 0.99999


def test_an_average_of_different_dimensions_is_refused_before_anything_is_computed(
    chunks: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        run(chunks, tmp_path / "out", fusion="weighted_average")
    assert str(caught.value) == (
        "--fusion weighted_average needs vectors of the same dimension, and these models have none in common: "
        "tiny-bert has 64, tiny-xlm-roberta has 48. Use --fusion concat or --fusion named, or other models."
    )
    assert not (tmp_path / "out" / "docs").exists()


def test_the_same_model_twice_is_refused(chunks: Path, tmp_path: Path) -> None:
    folder = str(model_folders()[BERT])
    with pytest.raises(UsageError) as caught:
        run(chunks, tmp_path / "out", models=[folder, f"{folder}=2"])
    assert str(caught.value) == "--models names tiny-bert twice. Drop one, or rename the folder of one."


# changes of mind


def test_another_fusion_encodes_nothing_and_leaves_no_export_of_the_one_before(chunks: Path, out: Path) -> None:
    for fusion, written, gone in (
        ("concat", "embeddings.npy", "embeddings"),
        ("named", "embeddings", "embeddings.npy"),
    ):
        done = run(chunks, out, fusion=fusion)
        assert (done.status, done.chunks.newly_encoded) == ("completed", 0)
        assert [each.batches for each in done.passes] == [0, 0]
        assert (out / "docs" / written).exists()
        assert not (out / "docs" / gone).exists()


def test_exports_of_another_fusion_that_are_not_written_again_are_deleted(chunks: Path, out: Path) -> None:
    done = run(chunks, out, fusion="concat", exports=["jsonl"])
    assert {path.name for path in (out / "docs").iterdir()} == {"store", "points.jsonl"}
    assert [Path(warning.split()[1].rstrip(":")).name for warning in done.warnings] == ["embeddings", "chunks.parquet"]


def test_other_weights_encode_nothing_and_change_the_exports(chunks: Path, out: Path) -> None:
    run(chunks, out, fusion="concat")
    before = np.load(out / "docs" / "embeddings.npy")
    folders = list(map(str, model_folders().values()))
    done = run(chunks, out, fusion="concat", models=[f"{folders[0]}=0.5", f"{folders[1]}=0.5"])
    after = np.load(out / "docs" / "embeddings.npy")
    assert done.chunks.newly_encoded == 0
    np.testing.assert_allclose(after[:, :64], before[:, :64] * 2**0.5, atol=1e-6)


def test_the_same_again_writes_the_same_bytes(chunks: Path, out: Path) -> None:
    before = {export["kind"]: export["sha256"] for export in summary_of(out)["collections"][0]["exports"]}
    assert {export.kind: export.sha256 for export in run(chunks, out).exports} == before


def test_a_model_that_joins_later_is_all_that_is_encoded(chunks: Path, tmp_path: Path) -> None:
    run(chunks, tmp_path / "out", models=[str(model_folders()[BERT])])
    done = run(chunks, tmp_path / "out")
    assert [(each.model, each.encoded_texts) for each in done.passes] == [(BERT, 0), (ROBERTA, 40)]
    written = {path.name for path in (tmp_path / "out" / "docs").iterdir()}
    assert written == {"store", "embeddings", "chunks.parquet", "points.jsonl"}


def spoil_stored_vectors(output: Path) -> None:
    """Let every text have the vector of another, as a program with a mistake in it would."""
    for ledger in output.glob("docs/store/*/ledger.jsonl"):
        lines = [json.loads(line) for line in ledger.read_text("utf-8").splitlines()]
        for line in lines:
            shard = ledger.with_name(line["shard"])
            rows = np.load(shard)
            rows["vector"] = np.roll(rows["vector"], 1, axis=0)
            np.save(shard, rows)
            line["sha256"] = file_sha256(shard)
        ledger.write_text("".join(f"{json.dumps(resealed(line))}\n" for line in lines), encoding="utf-8")


def test_a_fresh_run_puts_vectors_right_in_every_export(
    chunks: Path, out: Path, reference: dict[str, np.ndarray]
) -> None:
    spoil_stored_vectors(out)
    assert run(chunks, out).chunks.newly_encoded == 0
    assert least_cosine(npy_vectors(out)[BERT], reference[BERT]) < 0.99
    assert run(chunks, out, fresh=True).chunks.newly_encoded == 40
    points = jsonl_points(out)
    for name, vectors in reference.items():
        assert least_cosine(npy_vectors(out)[name], vectors) > 0.99999
        assert least_cosine(parquet_vectors(out, f"vector_{name}"), vectors) > 0.99999
        assert least_cosine(np.array([point["vector"][name] for point in points], np.float32), vectors) > 0.99999
    assert verify_output(out, 5, OFFLINE).damaged == []


# some collections otherwise


@pytest.mark.parametrize("fusion", ["named", "concat"])
def test_a_collection_may_have_the_first_model_only(tmp_path: Path, fusion: str) -> None:
    chunks = write_chunks(tmp_path / "chunks", docs=RECORDS[:5], notes=RECORDS[5:8])
    output = tmp_path / "out"
    done = embed(
        chunks,
        output,
        models=both_models(),
        fusion=fusion,
        no_ensemble="notes",
        devices="cpu",
        exports=FILES,
        quiet=True,
    ).collections
    assert {each.collection: [one.model for one in each.passes] for each in done} == {
        "docs": [BERT, ROBERTA],
        "notes": [BERT],
    }
    assert {each.collection: each.target_qdrant_collection for each in done} == {
        "docs": f"docs__tiny-bert__tiny-xlm-roberta__{fusion}",
        "notes": "notes__tiny-bert",
    }
    assert np.load(output / "notes" / "embeddings.npy").shape == (3, DIMS[BERT])
    assert PointsFile.open(output / "notes" / "chunks.parquet").vectors == (VectorSpec("", DIMS[BERT]),)
    found = verify_output(output, 5, OFFLINE)
    assert (found.vectors, found.damaged, found.unchecked) == (2 * 5 + 3, [], [])


def test_a_collection_that_has_its_exports_is_skipped_unread(out: Path, tmp_path: Path) -> None:
    unreadable = write_chunks(tmp_path / "chunks", docs="not a list of chunks")
    before = npy_vectors(out)
    done = run(unreadable, out, skip_existing=True)
    assert (done.status, done.error, done.rejected, done.passes) == ("skipped_existing", None, [], [])
    assert [each.rows for each in done.exports] == [done.chunks.found] * len(done.exports)
    assert all(np.array_equal(vectors, before[name]) for name, vectors in npy_vectors(out).items())


@pytest.mark.parametrize("missing", ["embeddings", "chunks.parquet", "points.jsonl"])
def test_a_collection_that_lacks_an_export_is_not_skipped(chunks: Path, out: Path, missing: str) -> None:
    path = out / "docs" / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = run(chunks, out, skip_existing=True)
    assert (done.status, done.chunks.newly_encoded) == ("completed", 0)
    assert path.exists()


def test_a_collection_is_not_skipped_when_another_export_is_asked_for(chunks: Path, out: Path) -> None:
    done = run(chunks, out, skip_existing=True, exports=EXPORT_KINDS)
    assert (done.status, done.chunks.newly_encoded) == ("completed", 0)
    assert (out / "docs" / "qdrant").is_dir()


# chunks that a model cannot embed


UNSPEAKABLE = "~"


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same models, each with a broken embedding: a text with a tilde in it gets no number for a vector."""
    made = {}
    for name, folder in model_folders().items():
        model = SentenceTransformer(str(folder), device="cpu")
        (token,) = model.tokenizer(UNSPEAKABLE, add_special_tokens=False)["input_ids"]
        transformer: Any = model[0]
        with torch.no_grad():
            transformer.auto_model.get_input_embeddings().weight[token] = float("nan")
        made[name] = tmp_path_factory.mktemp("blind") / name
        model.save(str(made[name]))
    return made


def models_of_which(blind: dict[str, Path], *names: str) -> list[str]:
    """Both models, these of them blind."""
    return [str(blind[name] if name in names else folder) for name, folder in model_folders().items()]


@pytest.fixture
def some_unspeakable(tmp_path: Path) -> Path:
    records = [*RECORDS[:5], {"text": f"What is a {UNSPEAKABLE}?"}, *RECORDS[5:10]]
    return write_chunks(tmp_path / "chunks", docs=records)


@pytest.mark.parametrize("names", [(BERT,), (ROBERTA,), (BERT, ROBERTA)], ids="+".join)
def test_a_chunk_that_a_model_cannot_embed_is_rejected_and_the_model_is_named(
    some_unspeakable: Path, tmp_path: Path, blind: dict[str, Path], names: tuple[str, ...]
) -> None:
    done = run(some_unspeakable, tmp_path / "out", models=models_of_which(blind, *names))
    (rejected,) = done.rejected
    assert (rejected.file, rejected.position) == ("a_chunks.json", 5)
    assert rejected.reason == f"{NO_VECTOR}: {', '.join(names)}"
    assert (done.status, done.chunks.embedded, done.chunks.rejected) == ("completed", 10, 1)
    assert {export.rows for export in done.exports} == {10}
    assert [point["id"] for point in jsonl_points(tmp_path / "out")] == IDS[:10]
    assert all(np.isfinite(vectors).all() for vectors in npy_vectors(tmp_path / "out").values())


def test_the_next_run_asks_only_the_model_that_failed_again(
    some_unspeakable: Path, tmp_path: Path, blind: dict[str, Path]
) -> None:
    words = models_of_which(blind, ROBERTA)
    run(some_unspeakable, tmp_path / "out", models=words)
    done = run(some_unspeakable, tmp_path / "out", models=words)
    assert [(each.model, each.stored_texts, each.batches) for each in done.passes] == [(BERT, 11, 0), (ROBERTA, 10, 1)]
    assert (done.chunks.embedded, done.chunks.rejected, done.chunks.newly_encoded) == (10, 1, 0)


def test_a_collection_fails_when_one_model_embeds_nothing_at_all(tmp_path: Path, blind: dict[str, Path]) -> None:
    chunks = write_chunks(tmp_path / "chunks", docs=[f"{text}{UNSPEAKABLE}" for text in TEXTS])
    done = run(chunks, tmp_path / "out", models=models_of_which(blind, ROBERTA))
    assert (done.status, done.exports) == ("failed", [])
    assert (done.chunks.embedded, [each.stored_chunks for each in done.passes]) == (0, [40, 0])


# queries


@pytest.mark.parametrize("fusion", [fusion for fusion in FUSIONS if fusion != "weighted_average"])
def test_a_text_as_a_query_finds_the_chunk_of_that_text(chunks: Path, out: Path, fusion: str) -> None:
    run(chunks, out, fusion=fusion)
    encoder = open_query_encoder(open_output(out), "docs", OFFLINE)
    ((_, stored, _),) = PointsFile.open(out / "docs" / "chunks.parquet").batches(100)
    for row in (0, 7, LONGEST):
        similarity = encoder.fusion.similarity(encoder.encode_query(TEXTS[row]), stored)
        assert int(similarity.argmax()) == row
        assert similarity[row] == pytest.approx(1, abs=1e-5)


# verification


@pytest.mark.parametrize("fusion", ["named", "concat"])
def test_an_output_of_several_models_verifies(chunks: Path, out: Path, fusion: str) -> None:
    run(chunks, out, fusion=fusion)
    found = verify_output(out, 10, OFFLINE)
    assert (found.shards, found.exports, found.vectors) == (2, 3, 20)
    assert (found.damaged, found.unchecked) == ([], [])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", DIMS)
def test_a_damaged_shard_of_any_model_is_found_and_only_that_model_works_again(
    chunks: Path, out: Path, name: str
) -> None:
    (damaged,) = [
        described.with_name("shard-00000.npy")
        for described in out.glob("docs/store/*/pass.json")
        if json.loads(described.read_text("utf-8"))["identity"]["model"] == name
    ]
    flip_a_bit(damaged)
    assert verify_output(out, 10, OFFLINE).damaged == [f"{damaged} is damaged (its checksum does not match)"]
    assert {each.model: each.encoded_texts for each in run(chunks, out).passes if each.encoded_texts} == {name: 40}
    assert verify_output(out, 10, OFFLINE).damaged == []


@pytest.mark.parametrize("name", DIMS)
def test_a_damaged_file_in_the_npy_folder_is_found_and_written_again(chunks: Path, out: Path, name: str) -> None:
    flip_a_bit(out / "docs" / "embeddings" / f"{name}.npy")
    (problem,) = verify_output(out, 10, OFFLINE).damaged
    assert problem == f"{out / 'docs' / 'embeddings'} is damaged or was changed (its checksum does not match)"
    run(chunks, out)
    assert verify_output(out, 10, OFFLINE).damaged == []


@pytest.mark.parametrize("name", DIMS)
def test_vectors_of_other_texts_are_found_and_their_model_is_named(out: Path, name: str) -> None:
    path, journal = out / "docs" / "chunks.parquet", out / "docs" / "store" / "exports.json"
    table = pq.read_table(path)
    column = table.schema.get_field_index(f"vector_{name}")
    moved = table[column].take(pa.array([*range(1, 40), 0]))
    pq.write_table(table.set_column(column, table.schema.field(column), moved), path)
    noted = json.loads(journal.read_text("utf-8"))  # a program that writes wrong vectors notes their checksum, too
    noted["parquet"] |= {"size_bytes": path.stat().st_size, "sha256": file_sha256(path)}
    journal.write_text(json.dumps(resealed(noted)), encoding="utf-8")
    problems = verify_output(out, 3, OFFLINE).damaged
    assert len(problems) == 3
    assert all(problem.startswith(f"{path}: the {name} vector of 'Chunk ") for problem in problems)


# upload


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with QdrantServer() as running:
        yield running


def params(size: int, distance: models.Distance = COSINE) -> models.VectorParams:
    return models.VectorParams(size=size, distance=distance)


def send(output: Path, server: QdrantServer, seen: list[Event]) -> UploadReport:
    (report,) = upload(output / "docs", server.url, emit=seen.append)
    return report


def test_the_collection_is_created_with_a_vector_a_model(out: Path, server: QdrantServer, seen: list[Event]) -> None:
    assert send(out, server, seen).target == TARGET
    assert server.collections[TARGET].vectors == {name: params(dim) for name, dim in DIMS.items()}


def test_every_point_arrives_with_both_vectors_and_its_payload(
    out: Path, server: QdrantServer, seen: list[Event]
) -> None:
    report = send(out, server, seen)
    assert (report.points, report.counted) == (40, 40)
    stored = server.collections[TARGET].points
    assert list(stored) == sorted(IDS)
    for row, (name, vectors) in ((row, each) for row in range(40) for each in npy_vectors(out).items()):
        held: Any = stored[IDS[row]].vector
        assert held[name] == vectors[row].tolist()
        assert (stored[IDS[row]].payload or {})["text"] == TEXTS[row]


def test_a_second_upload_of_named_vectors_doubles_nothing(out: Path, server: QdrantServer, seen: list[Event]) -> None:
    first = send(out, server, seen)
    stored = dict(server.collections[TARGET].points)
    assert send(out, server, seen).counted == first.counted == len(stored)
    assert server.collections[TARGET].points == stored


def test_concat_is_uploaded_as_one_vector_without_a_name(
    chunks: Path, out: Path, server: QdrantServer, seen: list[Event]
) -> None:
    run(chunks, out, fusion="concat")
    target = send(out, server, seen).target
    assert server.collections[target].vectors == params(64 + 48)
    assert len(server.collections[target].points) == 40


@pytest.mark.parametrize(
    ("there", "problem"),
    [
        (params(64), "unnamed vectors, but ours are named tiny-bert, tiny-xlm-roberta"),
        ({BERT: params(64)}, "vectors named tiny-bert, but ours are named tiny-bert, tiny-xlm-roberta"),
        (
            {BERT: params(64), "bge-m3": params(48)},
            "vectors named tiny-bert, bge-m3, but ours are named tiny-bert, tiny-xlm-roberta",
        ),
        (
            {BERT: params(64), ROBERTA: params(64)},
            "vectors named tiny-xlm-roberta with 64 dimensions, but ours have 48",
        ),
        (
            {BERT: params(64, models.Distance.DOT), ROBERTA: params(48)},
            "vectors named tiny-bert with Dot distance, but ours need Cosine",
        ),
    ],
    ids=["no name", "one missing", "another name", "another dimension", "another distance"],
)
def test_a_collection_with_other_vectors_is_refused(
    out: Path, server: QdrantServer, seen: list[Event], there: models.VectorsConfig, problem: str
) -> None:
    server.collections[TARGET] = StoredCollection(there)
    with pytest.raises(UploadError) as caught:
        send(out, server, seen)
    assert str(caught.value) == (
        f"collection {TARGET} on {server.url} has {problem}. "
        "Give another name with --collection, or delete that collection with --recreate."
    )
    assert server.sent_ids() == []


def test_one_vector_is_refused_by_a_collection_of_named_ones(
    chunks: Path, out: Path, server: QdrantServer, seen: list[Event]
) -> None:
    run(chunks, out, fusion="concat")
    target = TARGET.replace("named", "concat")
    server.collections[target] = StoredCollection({BERT: params(64), ROBERTA: params(48)})
    with pytest.raises(UploadError, match="has named vectors, but ours are unnamed with 112 dimensions"):
        send(out, server, seen)
