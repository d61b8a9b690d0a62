"""`--overlong`: texts beyond the token limit are truncated, pooled or split, through the front door."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.conftest import WriteChunks
from tests.support.graphs import have_graph
from tests.support.tiny_models import tiny_model
from ultimate_embedder import RunSummary, embed, open_output
from ultimate_embedder.config import HubAccess
from ultimate_embedder.description import fingerprint
from ultimate_embedder.execution import pooling
from ultimate_embedder.find import open_query_encoder
from ultimate_embedder.models import Encoder, SegmentCutter, load_encoder, resolve_model
from ultimate_embedder.summary import CollectionSummary
from ultimate_embedder.types import PassIdentity
from ultimate_embedder.vectors import VectorStore, read_identity
from ultimate_embedder.verify import verify_output

LIMIT = 64
OFFLINE = HubAccess(offline=True)
LONG = "The wing is heated. It is long and thin. " * 20
LONGER = " ".join(f"word{number}" for number in range(400))
RECORDS = [
    {"id": "short", "text": "a short text", "page": 1},
    {"id": "long", "text": LONG, "page": 2},
    {"id": "again", "text": LONG, "page": 3},
    {"id": "longer", "text": LONGER, "page": 4},
]


def run(chunks: Path, output: Path, **options: Any) -> RunSummary:
    settings = {"models": str(tiny_model("bert", prompts=True)), "max_tokens": LIMIT, "exports": "npy,parquet"}
    return embed(chunks, output, **{**settings, "devices": "cpu", "quiet": True, **options})


def only(summary: RunSummary) -> CollectionSummary:
    (collection,) = summary.collections
    assert collection.status == "completed", collection.error
    return collection


def vectors(output: Path) -> np.ndarray:
    return np.asarray(np.load(open_output(output)["docs"].embeddings))


def tiny_encoder() -> Encoder:
    return load_encoder(resolve_model(str(tiny_model("bert", prompts=True))), "float32", "cpu", LIMIT)


def pooled_by_hand(text: str) -> np.ndarray:
    """The mean of what sentence-transformers gives for the segments, weighted by their own tokens."""
    encoder = tiny_encoder()
    cut = SegmentCutter(encoder).cut(text)
    pieces = [text[each.start : each.end] for each in cut.segments]
    computed = encoder.model.encode(pieces, prompt=encoder.document_prompt)
    mean = np.average(computed, axis=0, weights=[len(piece.encode()) for piece in pieces])
    return np.asarray(mean / np.linalg.norm(mean))


@pytest.fixture
def chunks(write_chunks: WriteChunks) -> Path:
    return write_chunks(RECORDS)


def test_truncated_texts_are_listed_with_what_they_lost(chunks: Path, tmp_path: Path) -> None:
    collection = only(run(chunks, tmp_path / "out"))
    assert (collection.chunks.truncated, collection.chunks.pooled, collection.chunks.split) == (3, 0, 0)
    (done,) = collection.passes
    own = len("passage: ") + 2
    assert [(each.chunk_id, each.tokens, each.tokens_lost) for each in done.lost_most] == [
        ("longer", len(LONGER) + own, len(LONGER) + own - LIMIT),
        ("long", len(LONG) + own, len(LONG) + own - LIMIT),
    ]
    assert collection.chunks.longest_tokens == done.longest_tokens == len(LONGER) + own
    assert collection.chunks.tokens_lost == done.tokens_lost == sum(each.tokens_lost for each in done.lost_most)
    assert done.lost_share == pytest.approx(done.tokens_lost / (len(LONGER) + len(LONG) + 2 * own))


def test_a_run_that_goes_on_lists_also_what_an_earlier_one_truncated(write_chunks: WriteChunks, tmp_path: Path) -> None:
    run(write_chunks(RECORDS[:2]), tmp_path / "out")
    collection = only(run(write_chunks(RECORDS), tmp_path / "out"))
    assert [each.chunk_id for each in collection.passes[0].lost_most] == ["longer", "long"]
    assert (collection.chunks.truncated, collection.chunks.newly_encoded) == (3, 1)


def test_a_pooled_text_has_the_mean_of_its_segments(chunks: Path, tmp_path: Path) -> None:
    collection = only(run(chunks, tmp_path / "out", overlong="pool"))
    assert (collection.chunks.pooled, collection.chunks.truncated, collection.chunks.tokens_lost) == (3, 0, 0)
    assert (collection.chunks.found, collection.chunks.embedded, collection.chunks.newly_encoded) == (4, 4, 3)
    assert collection.passes[0].segments > 20
    found = vectors(tmp_path / "out")
    assert np.allclose(found[1], pooled_by_hand(LONG), atol=1e-5)
    assert np.allclose(found[3], pooled_by_hand(LONGER), atol=1e-5)
    assert np.array_equal(found[1], found[2])
    only(run(chunks, tmp_path / "truncated"))
    short, long = np.abs(found - vectors(tmp_path / "truncated")).max(axis=1)[:2]
    assert short < 1e-5 < 0.01 < long


def test_pooled_vectors_are_verified_and_queries_see_the_same_documents(chunks: Path, tmp_path: Path) -> None:
    only(run(chunks, tmp_path / "out", overlong="pool", overlap=20, dim=32, exports="npy,parquet"))
    checked = verify_output(tmp_path / "out", 10, OFFLINE)
    assert (checked.vectors, checked.mismatches, checked.unchecked, checked.damaged) == (4, 0, [], [])
    encoder = open_query_encoder(open_output(tmp_path / "out"), "docs", OFFLINE)
    documents = encoder.encode_documents([str(record["text"]) for record in RECORDS])
    assert np.allclose(documents[""], vectors(tmp_path / "out"), atol=1e-5)


def test_a_pooling_run_that_fails_half_way_goes_on_and_gives_the_same_vectors(
    chunks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(run(chunks, tmp_path / "reference", overlong="pool"))
    add, calls = pooling.SegmentPool.add, iter(range(1000))

    def fail_later(self: pooling.SegmentPool, *arguments: Any) -> Any:
        if next(calls) == 2:
            raise RuntimeError("half way")
        return add(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(pooling.SegmentPool, "add", fail_later)
        (failed,) = run(chunks, tmp_path / "out", overlong="pool", batch_rows=4).collections
    assert failed.status == "failed"
    only(run(chunks, tmp_path / "out", overlong="pool", batch_rows=4))
    assert np.allclose(vectors(tmp_path / "out"), vectors(tmp_path / "reference"), atol=1e-5)


def test_how_long_texts_are_treated_is_part_of_a_pass_only_where_they_are_pooled() -> None:
    known = PassIdentity("m", "r", "d", "float32", None, None, None)
    assert fingerprint(known) == "e226577b6d5a942e"  # as before there was a choice: those outputs stay valid
    pools = PassIdentity("m", "r", "d", "float32", None, None, None, overlong="pool")
    overlaps = PassIdentity("m", "r", "d", "float32", None, None, None, overlong="pool", overlap=8)
    assert len({fingerprint(each) for each in (known, pools, overlaps)}) == 3


def test_pooled_and_truncated_vectors_do_not_mix(chunks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    only(run(chunks, out))
    truncated = vectors(out)
    collection = only(run(chunks, out, overlong="pool"))
    assert collection.chunks.newly_encoded == 3
    assert any("overlong was 'truncate' and is 'pool'" in warning for warning in collection.warnings)
    identities = [read_identity(each.folder) for each in open_output(out)["docs"].passes]
    assert sorted(each.overlong for each in identities if each) == ["pool", "truncate"]
    assert only(run(chunks, out)).chunks.newly_encoded == 0
    assert np.array_equal(vectors(out), truncated)


def test_segments_that_are_points_have_the_passage_and_their_parent(chunks: Path, tmp_path: Path) -> None:
    collection = only(run(chunks, tmp_path / "out", overlong="split", exports="npy,parquet,jsonl"))
    counts = collection.chunks
    assert (counts.found, counts.split, counts.rejected, counts.truncated) == (4, 3, 0, 0)
    assert counts.embedded == counts.found - counts.split + counts.split_points
    lines = open_output(tmp_path / "out")["docs"].jsonl.read_text("utf-8").splitlines()
    payloads = [json.loads(line)["payload"] for line in lines]
    assert len(payloads) == counts.embedded == len(vectors(tmp_path / "out"))
    assert len({json.loads(line)["id"] for line in lines}) == len(lines)
    assert "split_from" not in payloads[0]
    text_of = {record["id"]: record["text"] for record in RECORDS}
    for payload in payloads[1:]:
        origin = payload["split_from"]
        whole = str(text_of[origin["chunk_id"]])
        assert payload["text"] == whole[origin["start"] : origin["end"]]
        assert payload["chunk_id"] == f"{origin['chunk_id']}#{origin['segment']}"
    again = pq.read_table(open_output(tmp_path / "out")["docs"].points_file, columns=["chunk_id"])
    assert again["chunk_id"].to_pylist() == [payload["chunk_id"] for payload in payloads]
    assert verify_output(tmp_path / "out", 100, OFFLINE).mismatches == 0


def test_segments_are_texts_like_others_and_what_is_stored_is_reused(chunks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    only(run(chunks, out))
    first = only(run(chunks, out, overlong="split"))
    assert first.passes[0].stored_texts == 1  # the short text
    again = only(run(chunks, out, overlong="split"))
    assert again.chunks == first.chunks.model_copy(update={"newly_encoded": 0})
    skipped = run(chunks, out, overlong="split", skip_existing=True).collections[0]
    assert skipped.status == "skipped_existing"
    for name in ("found", "embedded", "rejected", "split", "split_points", "distinct_texts"):
        assert getattr(skipped.chunks, name) == getattr(first.chunks, name), name


def test_all_models_of_an_ensemble_have_the_same_points_and_nothing_is_truncated(
    chunks: Path, tmp_path: Path, minilm: Path
) -> None:
    models = [str(tiny_model("bert", max_tokens=48, prompts=True)), str(minilm)]
    collection = only(run(chunks, tmp_path / "out", models=models, max_tokens=None, overlong="split", fusion="concat"))
    assert [each.truncated for each in collection.passes] == [0, 0]
    assert collection.chunks.split == 3
    assert vectors(tmp_path / "out").shape == (collection.chunks.embedded, 64 + 384)


def test_models_that_share_their_tokens_pool_alike(chunks: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tiny_model("bert", hidden=48, prompts=True), tmp_path / "tiny-bert-48")
    models = [str(tiny_model("bert", prompts=True)), str(other)]
    collection = only(run(chunks, tmp_path / "out", models=models, overlong="pool", fusion="concat"))
    assert [each.pooled for each in collection.passes] == [3, 3]
    first = vectors(tmp_path / "out")[1, :64]
    assert np.allclose(first / np.linalg.norm(first), pooled_by_hand(LONG), atol=1e-5)


def test_an_overlap_that_leaves_nothing_is_said_with_the_way_out(chunks: Path, tmp_path: Path) -> None:
    for how in ("pool", "split"):
        (collection,) = run(chunks, tmp_path / how, overlong=how, overlap=60).collections
        assert collection.status == "failed"
        assert collection.error is not None
        assert "--overlap 60" in collection.error
        assert "Give at most 26" in collection.error


def test_int8_vectors_of_pooled_texts_are_compared_with_fp32(
    write_chunks: WriteChunks, tmp_path: Path, minilm: Path
) -> None:
    pytest.importorskip("openvino")
    pytest.importorskip("onnx")
    have_graph(minilm, "openvino", int8=True)
    chunks = write_chunks(["a short text", LONG * 3])
    options = {"models": str(minilm), "max_tokens": None, "precision": "int8", "overlong": "pool"}
    collection = only(run(chunks, tmp_path / "out", **options))
    agreement = collection.passes[0].agreement
    assert agreement is not None
    assert (agreement.texts, collection.chunks.pooled) == (2, 1)
    assert agreement.worst_cosine > 0.95


def test_a_store_says_which_texts_are_overlong(chunks: Path, tmp_path: Path) -> None:
    only(run(chunks, tmp_path / "out", overlong="pool"))
    output = open_output(tmp_path / "out")["docs"]
    identity = read_identity(output.passes[0].folder)
    assert identity is not None
    store = VectorStore(output.store, identity, read_only=True)
    unknown = np.zeros((1, 2), np.uint64)
    assert store.overlong(unknown).tolist() == [False]
