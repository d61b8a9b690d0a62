"""Sparse vectors beside dense ones, from `embed --sparse` to every export, and back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from qdrant_edge import Bm25, Bm25Config, Query, QueryRequest, SparseVector
from sentence_transformers import SparseEncoder

from tests.support.clock import wait_until
from tests.support.tiny_models import tiny_inference_free, tiny_model, tiny_splade
from ultimate_embedder import RunSummary, UsageError, embed, open_output
from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import ModelError
from ultimate_embedder.find import open_sparse_query, query_sparse, read_sparse
from ultimate_embedder.models import (
    SegmentCutter,
    SparseModel,
    TokenBatch,
    WordCounter,
    load_sparse_model,
    resolve_model,
)
from ultimate_embedder.sparse import sparse_from_dense
from ultimate_embedder.status import output_status
from ultimate_embedder.types import Bm25Settings
from ultimate_embedder.vectors import store
from ultimate_embedder.verify import verify_output

TEXTS = [f"Chunk {n} tells of mice, clocks and {'more ' * (n % 9)}houses 0x{n:04x}" for n in range(60)]
TEXTS += [TEXTS[0], "the of and"]  # an equal text, and one without words that count
OFFLINE = HubAccess(offline=True)


def write(root: Path, texts: list[str]) -> Path:
    (root / "docs").mkdir(parents=True, exist_ok=True)
    (root / "docs" / "t_chunks.json").write_text(json.dumps(texts))
    return root


def run(chunks: Path, output: Path, **options: Any) -> RunSummary:
    usual = {"models": str(tiny_model("bert")), "devices": "cpu", "quiet": True, "no_report": True}
    return embed(chunks, output, **{**usual, **options})


def engine(texts: list[str]) -> list[SparseVector]:
    """What Qdrant's engine makes of the texts, with their own mean length."""
    counts = WordCounter(Bm25Settings()).count(texts)
    own = Bm25(Bm25Config(avg_len=float(counts.row_sums.mean())))
    return [own.embed_document(text) for text in texts]


def splade_of(texts: list[str]) -> np.ndarray:
    model = SparseEncoder(str(tiny_splade()), device="cpu")
    return np.asarray(model.encode_document(texts, convert_to_sparse_tensor=False))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of one run with all exports; not to be changed."""
    root = tmp_path_factory.mktemp("sparse")
    sparse = ["bm25", f"splade={tiny_splade()}"]
    summary = run(write(root / "chunks", TEXTS), root / "out", sparse=sparse, exports="npy,parquet,jsonl,qdrant")
    assert summary.ok
    return root / "out"


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(made, tmp_path / "out")


def test_every_export_has_the_vectors_of_the_engine_and_of_sentence_transformers(made: Path) -> None:
    docs, words, learned = open_output(made)["docs"], engine(TEXTS), splade_of(TEXTS)
    bm25, splade = docs.sparse_vectors("bm25"), docs.sparse_vectors("tiny-splade")
    assert [bm25[row][0].tolist() for row in range(62)] == [each.indices for each in words]
    assert [bm25[row][1].tolist() for row in range(62)] == [each.values for each in words]
    assert np.abs(splade.to_dense(learned.shape[1]) - learned).max() < 1e-4
    lines = [json.loads(line) for line in docs.jsonl.read_text().splitlines()]
    for row, (line, point) in enumerate(zip(lines, docs.points(), strict=True)):
        assert list(line["vector"]) == list(point.vector) == ["", "tiny-splade", "bm25"]
        for name, vectors in (("bm25", bm25), ("tiny-splade", splade)):
            assert line["vector"][name]["indices"] == vectors[row][0].tolist()
            assert np.allclose(line["vector"][name]["values"], vectors[row][1])
            assert np.array_equal(point.vector[name]["values"], vectors[row][1])
        assert np.allclose(line["vector"][""], docs.vectors()[row])
    assert docs.vectors().shape == (62, 64)  # of dense vectors only
    assert pq.read_schema(docs.points_file).names[-4:] == [
        *("sparse_tiny-splade_indices", "sparse_tiny-splade_values", "sparse_bm25_indices", "sparse_bm25_values")
    ]
    assert docs.chunks().num_columns == 7
    with docs.open_shard() as shard:
        asked = query_sparse(read_sparse(open_output(made), "docs")[1], "house 0x0007")
        query = SparseVector(asked.indices.tolist(), asked.values.tolist())
        (hit,) = shard.query(QueryRequest(query=Query.Nearest(query, using="bm25"), limit=1, with_payload=True))
        assert (hit.payload or {})["text"] == TEXTS[7]


def test_the_summary_says_how_they_were_made(made: Path) -> None:
    (entry,) = open_output(made).summary.collections  # type: ignore[union-attr]
    assert [(each.name, each.dim, each.kind) for each in entry.vectors] == [
        ("", 64, "dense"),
        ("tiny-splade", None, "sparse"),
        ("bm25", None, "sparse"),
    ]
    passes = [(each.model, each.kind, each.counts_words, each.weight, each.encoded_texts) for each in entry.passes]
    assert passes == [
        ("tiny-bert", "dense", False, 1.0, 61),
        ("tiny-splade", "sparse", False, 0.0, 61),
        ("bm25", "sparse", True, 0.0, 61),
    ]
    assert [each.model for each in entry.dense_models] == ["tiny-bert"]
    splade, bm25 = entry.sparse
    assert (splade.method, splade.modifier, splade.empty, splade.bm25) == ("splade", None, 0, None)
    assert (bm25.method, bm25.modifier, bm25.empty) == ("bm25", "idf", 1)
    assert bm25.avg_len == WordCounter(Bm25Settings()).count(TEXTS).row_sums.mean()
    assert entry.fusion is None
    assert entry.target_qdrant_collection == "docs__tiny-bert__tiny-splade__bm25"
    # the journal of the exports, which has a checksum, and the points file say the same
    assert list(read_sparse(open_output(made), "docs")) == entry.sparse
    (made / "summary.json").rename(made / "kept.json")
    assert list(read_sparse(open_output(made), "docs")) == entry.sparse
    (made / "kept.json").rename(made / "summary.json")


def test_an_intact_output_is_verified_and_damage_is_found(out: Path) -> None:
    found = verify_output(out, sample=20, access=OFFLINE)
    assert (found.damaged, found.unchecked, found.vectors, found.mismatches) == ([], [], 60, 0)
    assert [(each.model, each.missing, each.next) for each in output_status(out)] != []
    assert {each.model for each in output_status(out)} == {"tiny-bert", "tiny-splade", "bm25"}
    shard = next(out.glob("docs/store/*/shard-*.arrow"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    (damaged,) = verify_output(out, sample=5, access=OFFLINE).damaged
    assert damaged == f"{shard} is damaged (its checksum does not match)"


def test_vectors_that_are_not_of_their_texts_are_found(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = WordCounter.count
    monkeypatch.setattr(WordCounter, "digest", lambda self: read_sparse(open_output(out), "docs")[1].digest)
    monkeypatch.setattr(WordCounter, "count", lambda self, texts: count(self, [text[::-1] for text in texts]))
    found = verify_output(out, sample=20, access=OFFLINE)
    assert found.mismatches >= 2 * 19  # in the store and in the points file; the empty one is right
    assert "bm25 vector" in found.damaged[0]


def test_adding_sparse_vectors_encodes_nothing_again(tmp_path: Path) -> None:
    chunks = write(tmp_path / "chunks", TEXTS)
    before = run(chunks, tmp_path / "out", exports="npy,parquet").collections[0]
    vectors = np.array(open_output(tmp_path / "out")["docs"].vectors())
    skipped = run(chunks, tmp_path / "out", exports="npy,parquet", skip_existing=True).collections[0]
    assert skipped.status == "skipped_existing"
    # sparse vectors that are not there yet are made also with skip_existing
    after = run(chunks, tmp_path / "out", exports="npy,parquet", sparse="bm25", skip_existing=True).collections[0]
    assert (before.chunks.newly_encoded, after.chunks.newly_encoded) == (61, 0)
    assert [(each.model, each.encoded_texts, each.stored_texts) for each in after.passes] == [
        ("tiny-bert", 0, 61),
        ("bm25", 61, 0),
    ]
    docs = open_output(tmp_path / "out")["docs"]
    assert np.array_equal(docs.vectors(), vectors)
    assert len(docs.sparse_vectors()) == 62
    again = run(chunks, tmp_path / "out", exports="npy,parquet", sparse="bm25", skip_existing=True).collections[0]
    assert (again.status, again.sparse) == ("skipped_existing", after.sparse)


def test_chunks_that_are_added_change_what_all_words_weigh(tmp_path: Path) -> None:
    chunks = write(tmp_path / "chunks", TEXTS)
    run(chunks, tmp_path / "out", exports="parquet", sparse="bm25")
    first = open_output(tmp_path / "out")["docs"].sparse_vectors()
    more = [*TEXTS, "a very long chunk " + "with many words " * 200]
    summary = run(write(tmp_path / "chunks", more), tmp_path / "out", exports="parquet", sparse="bm25")
    assert [(each.model, each.encoded_texts) for each in summary.collections[0].passes] == [
        ("tiny-bert", 1),
        ("bm25", 1),
    ]
    docs, words = open_output(tmp_path / "out")["docs"].sparse_vectors(), engine(more)
    assert [docs[row][1].tolist() for row in range(63)] == [each.values for each in words]
    assert not np.allclose(docs[0][1], first[0][1])


def test_long_texts_are_pooled_by_the_largest_value_and_counted_whole(tmp_path: Path) -> None:
    long = "mice and clocks. " * 30 + "A needle at the end."
    chunks = write(tmp_path / "chunks", ["short", long])
    sparse = ["bm25", f"splade={tiny_splade()}"]
    options = {"sparse": sparse, "max_tokens": 64, "exports": "parquet", "overlong": "pool"}
    summary = run(chunks, tmp_path / "out", **options).collections[0]
    assert [(each.model, each.truncated, each.pooled) for each in summary.passes] == [
        ("tiny-bert", 0, 1),
        ("tiny-splade", 0, 1),
        ("bm25", 0, 0),
    ]
    docs = open_output(tmp_path / "out")["docs"]
    assert set(query_sparse(summary.sparse[1], "needle").indices) <= set(docs.sparse_vectors("bm25")[1][0])
    pooled = docs.sparse_vectors("tiny-splade").to_dense(261)[1]
    cutter = SegmentCutter(load_sparse_model(resolve_model(str(tiny_splade())), "float32", 64))
    parts = splade_of([long[part.start : part.end] for part in cutter.cut(long).segments])
    assert len(parts) > 5
    assert np.abs(pooled - parts.max(axis=0)).max() < 1e-4
    assert verify_output(tmp_path / "out", sample=2, access=OFFLINE).damaged == []


def test_queries_are_encoded_as_the_chunks_were(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = open_output(made)
    words = open_sparse_query(output, "docs", "bm25", OFFLINE).encode_query("Mice, mice and clocks")
    assert sorted(Bm25().embed_query("Mice, mice and clocks").indices) == words[0][0].tolist()
    assert words[0][1].tolist() == [1.0, 1.0]
    learned = open_sparse_query(output, "docs", "tiny-splade", OFFLINE).encode_query("Mice and clocks")
    model = SparseEncoder(str(tiny_splade()), device="cpu")
    expected = sparse_from_dense(np.asarray(model.encode_query(["Mice and clocks"], convert_to_sparse_tensor=False)))
    assert np.array_equal(learned.indices, expected.indices)
    assert np.allclose(learned.values, expected.values, atol=1e-4)
    with pytest.raises(UsageError, match="docs has the sparse vectors tiny-splade, bm25, not None"):
        open_sparse_query(output, "docs", None, OFFLINE)
    monkeypatch.setattr(WordCounter, "digest", lambda self: "of another version")
    with pytest.raises(ModelError, match="the installed qdrant-edge-py tells words apart in another way"):
        open_sparse_query(output, "docs", "bm25", OFFLINE)


def test_a_model_that_looks_queries_up_needs_no_transformer_for_them(tmp_path: Path) -> None:
    chunks = write(tmp_path / "chunks", TEXTS[:5])
    run(chunks, tmp_path / "out", exports="parquet", sparse=f"splade={tiny_inference_free()}")
    query = open_sparse_query(open_output(tmp_path / "out"), "docs", None, OFFLINE).encode_query("clock")
    model = SparseEncoder(str(tiny_inference_free()), device="cpu")
    expected = sparse_from_dense(np.asarray(model.encode_query(["clock"], convert_to_sparse_tensor=False)))
    assert np.array_equal(query.indices, expected.indices)
    assert np.allclose(query.values, expected.values)


def test_mistakes_are_answered_before_anything_is_computed(tmp_path: Path) -> None:
    chunks = write(tmp_path / "chunks", TEXTS[:2])

    def refusal(**options: Any) -> str:
        with pytest.raises((UsageError, ModelError)) as caught:
            run(chunks, tmp_path / "out", **options)
        return str(caught.value)

    assert refusal(sparse="bm52") == "--sparse bm52: not bm25, bm25=LANGUAGE or splade=MODEL. Did you mean bm25?"
    assert refusal(sparse="bm25=germann").endswith("Did you mean german?")
    assert refusal(sparse="splade") == "--sparse splade: write splade=granite-embedding-30m-sparse, for example."
    assert refusal(sparse="bm25,bm25=german").startswith("--sparse: bm25 is given twice")
    assert refusal(sparse="") == "--sparse is empty. Write bm25, or splade=MODEL, or drop the option."
    assert "tiny-bert is no sparse encoder" in refusal(sparse=f"splade={tiny_model('bert')}")
    splade = str(tiny_splade())
    assert refusal(models=splade) == f"--models {splade}: its vectors are sparse. Write --sparse splade={splade}."
    assert not (tmp_path / "out" / "docs").exists()


def test_exports_without_sparse_vectors_are_a_warning(tmp_path: Path) -> None:
    summary = run(write(tmp_path / "chunks", TEXTS[:2]), tmp_path / "out", exports="npy", sparse="bm25")
    assert summary.collections[0].warnings == [
        "--export npy has no sparse vectors (bm25). They are stored: add one of parquet, jsonl, qdrant."
    ]


# Small shards, sealed at once, so that a kill meets a pass in the middle.
KILLED = """
import sys
from ultimate_embedder.cli import main
from ultimate_embedder.vectors import store
store.SHARD_ROWS = 8
sys.exit(main(sys.argv[1:]))
"""


def test_a_pass_that_fails_in_the_middle_goes_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks, sparse = write(tmp_path / "chunks", TEXTS), ["bm25", f"splade={tiny_splade()}"]
    forwards = iter([True, True])
    forward = SparseModel.forward

    def fails(self: SparseModel, batch: TokenBatch) -> Any:
        next(forwards)  # StopIteration after some batches
        return forward(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(SparseModel, "can_pack", lambda self, device: False)  # whose trial needs forwards too
        patch.setattr(SparseModel, "forward", fails)
        patch.setattr(store, "SHARD_ROWS", 4)
        failed = run(chunks, tmp_path / "out", sparse=sparse, exports="parquet", batch_rows=8).collections[0]
    assert failed.status == "failed"
    dense, splade, bm25 = run(chunks, tmp_path / "out", sparse=sparse, exports="parquet").collections[0].passes
    assert (dense.encoded_texts, bm25.encoded_texts) == (0, 61)
    assert 8 <= splade.stored_texts < 61 == splade.stored_texts + splade.encoded_texts
    found = open_output(tmp_path / "out")["docs"].sparse_vectors("tiny-splade")
    assert np.abs(found.to_dense(261) - splade_of(TEXTS)).max() < 1e-4


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    texts = [f"text number {number} " * (number % 10 + 1) for number in range(80)]
    chunks, out = write(tmp_path / "chunks", texts), tmp_path / "out"
    words = ["embed", str(chunks), "-o", str(out), "--models", str(tiny_model("bert")), "--devices", "cpu"]
    words += ["--sparse", f"bm25,splade={tiny_splade()}", "--export", "parquet", "--quiet"]
    process = subprocess.Popen([sys.executable, "-c", KILLED, *words], env={**os.environ, "OMP_NUM_THREADS": "1"})
    wait_until(lambda: any(out.glob("docs/store/*/shard-00001.arrow")) or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    sparse = ["bm25", f"splade={tiny_splade()}"]
    dense, splade, bm25 = run(chunks, out, sparse=sparse, exports="parquet").collections[0].passes
    assert (dense.stored_texts, dense.encoded_texts) == (80, 0)
    assert splade.stored_texts > 0
    assert splade.stored_texts + splade.encoded_texts == bm25.stored_texts + bm25.encoded_texts == 80
    docs, learned = open_output(out)["docs"], splade_of(texts)
    assert np.abs(docs.sparse_vectors("tiny-splade").to_dense(261) - learned).max() < 1e-4
    assert docs.sparse_vectors("bm25")[79][1].tolist() == engine(texts)[79].values
