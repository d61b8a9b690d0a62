"""The store of a pass whose vectors are sparse."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.damage import resealed
from ultimate_embedder.description import PassDescription, read_description
from ultimate_embedder.files import file_sha256
from ultimate_embedder.sparse import SparseVectors, sparse_from_dense, sparse_from_rows
from ultimate_embedder.types import Bm25Settings, PassIdentity
from ultimate_embedder.vectors import VectorStore, measure_sparse, pass_problems, store, weigh_counts
from ultimate_embedder.vectors.row_kinds import SPARSE, ShardRows

IDENTITY = PassIdentity("m", "r1", "d1", "float32", None, None, None, kind="sparse")
COUNTS = dataclasses.replace(IDENTITY, bm25=Bm25Settings())


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, SparseVectors, np.ndarray]:
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 2**63, (count, 2)).astype(np.uint64)
    dense = np.where(rng.random((count, 20)) > 0.7, rng.integers(1, 4, (count, 20)), 0).astype(np.float32)
    dense[0] = 0
    return keys, sparse_from_dense(dense), rng.random(count) < 0.3


def dense(vectors: SparseVectors) -> list[list[float]]:
    rows: list[list[float]] = vectors.to_dense(20).tolist()
    return rows


def test_sparse_vectors_come_back_by_key_in_any_order(tmp_path: Path) -> None:
    keys, vectors, truncated = rows(100)
    with VectorStore(tmp_path, IDENTITY) as written:
        written.append(keys[:60], vectors.slice(0, 60), truncated[:60])
        written.seal()
        written.append(keys[60:], vectors.slice(60, 100), truncated[60:])
    order = np.random.default_rng(1).permutation(100)
    reopened = VectorStore(tmp_path, IDENTITY)
    assert dense(reopened.read(keys[order])) == dense(vectors.take(order))
    assert reopened.overlong(keys).tolist() == truncated.tolist()
    assert (reopened.dim, reopened.is_empty, reopened.notes) == (None, False, [])
    assert [path.name for path in sorted(written.folder.glob("shard-*"))] == ["shard-00000.arrow", "shard-00001.arrow"]
    described = read_description(written.folder)
    assert isinstance(described, PassDescription)
    assert (described.store_version, described.dim, described.identity) == (2, None, IDENTITY)
    assert list(pass_problems(written.folder)) == []


def test_the_settings_of_bm25_are_part_of_the_identity(tmp_path: Path) -> None:
    keys, vectors, truncated = rows(5)
    with VectorStore(tmp_path, COUNTS) as written:
        written.append(keys, vectors, truncated)
    described = read_description(written.folder)
    assert isinstance(described, PassDescription)
    assert described.identity == COUNTS
    german = dataclasses.replace(COUNTS, bm25=Bm25Settings(language="german"))
    assert not VectorStore(tmp_path, german).holds(keys).any()


def test_a_shard_is_closed_by_its_size_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SHARD_BYTES", 1000)
    written = VectorStore(tmp_path, IDENTITY)
    keys, vectors, truncated = rows(40)
    for start in range(0, 40, 10):
        written.append(keys[start : start + 10], vectors.slice(start, start + 10), truncated[start : start + 10])
    assert len(list(written.folder.glob("shard-*.arrow"))) == 2
    written.seal()
    assert dense(written.read(keys)) == dense(vectors)


@pytest.mark.parametrize("damage", ["flipped", "unsorted", "cut", "empty"])
def test_a_damaged_shard_is_named_and_its_vectors_are_missing(tmp_path: Path, damage: str) -> None:
    keys, vectors, truncated = rows(30)
    with VectorStore(tmp_path, IDENTITY) as written:
        written.append(keys[:20], vectors.slice(0, 20), truncated[:20])
        written.seal()
        written.append(keys[20:], vectors.slice(20, 30), truncated[20:])
    shard = written.folder / "shard-00001.arrow"
    content = bytearray(shard.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    elif damage == "unsorted":  # with the right checksum: whoever wrote it knew how
        part = vectors.slice(20, 30)
        unsorted = dataclasses.replace(part, indices=part.indices[::-1].copy())
        content = bytearray(SPARSE.encode(ShardRows(keys[20:], truncated[20:], unsorted, None)))
    else:
        content = content[: len(content) // 2] if damage == "cut" else bytearray()
    shard.write_bytes(content)
    if damage != "flipped":
        lines = [json.loads(line) for line in (written.folder / "ledger.jsonl").read_text().splitlines()]
        lines[1] |= {"sha256": file_sha256(shard)}
        (written.folder / "ledger.jsonl").write_text("".join(json.dumps(resealed(line)) + "\n" for line in lines))
    (problem,) = pass_problems(written.folder)
    assert "shard-00001.arrow is damaged" in problem
    reopened = VectorStore(tmp_path, IDENTITY)
    assert reopened.holds(keys).tolist() == [True] * 20 + [False] * 10
    assert "recomputing its 10 vectors" in reopened.notes[0]
    assert dense(reopened.read(keys[:20])) == dense(vectors.slice(0, 20))


def test_vectors_are_taken_over_from_another_output(tmp_path: Path) -> None:
    keys, vectors, truncated = rows(10)
    with VectorStore(tmp_path / "a", COUNTS) as written:
        written.append(keys, vectors, truncated)
    taken = VectorStore(tmp_path / "b", COUNTS)
    assert taken.copy_from(tmp_path / "a") == 10
    assert dense(VectorStore(tmp_path / "b", COUNTS).read(keys)) == dense(vectors)


def test_weights_follow_from_the_mean_length_of_all_chunks(tmp_path: Path) -> None:
    keys = np.array([[1, 0], [2, 0], [3, 0]], np.uint64)
    counts = sparse_from_rows([([5, 9], [2.0, 1.0]), ([], []), ([9], [6.0])])
    with VectorStore(tmp_path, COUNTS) as written:
        written.append(keys, counts, np.zeros(3, bool))
    part = measure_sparse(written, keys[[0, 1, 2, 2]])  # a text that occurs twice counts twice
    facts = part.facts
    assert (facts.avg_len, facts.empty, facts.values_per_point, facts.modifier) == (15 / 4, 1, 1.0, "idf")
    expected = weigh_counts(counts, Bm25Settings(), 15 / 4)
    assert dense(part.read(keys)) == dense(expected)
    k, b, length = 1.2, 0.75, 3
    assert expected[0][1][0] == pytest.approx(2 * (k + 1) / (2 + k * (1 - b + b * length / (15 / 4))))
    nothing = measure_sparse(written, keys[[1]]).facts
    assert (nothing.avg_len, nothing.empty) == (256.0, 1)
