from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.damage import resealed
from ultimate_embedder.errors import OutputError
from ultimate_embedder.types import PassIdentity
from ultimate_embedder.vectors import EncoderFacts, VectorStore, fingerprint, store
from ultimate_embedder.vectors.index import KeyIndex

IDENTITY = PassIdentity("m", "r1", "d1", "float32", None, None, None)


def rows(count: int, seed: int = 0, dim: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 2**63, (count, 2)).astype(np.uint64)
    return keys, rng.standard_normal((count, dim)).astype(np.float32), rng.random(count) < 0.3


def test_vectors_come_back_by_key_in_any_order(tmp_path: Path) -> None:
    keys, vectors, truncated = rows(100)
    with VectorStore(tmp_path, IDENTITY) as written:
        written.append(keys[:60], vectors[:60], truncated[:60])
        written.seal()
        written.append(keys[60:], vectors[60:], truncated[60:])
    order = np.random.default_rng(1).permutation(100)
    reopened = VectorStore(tmp_path, IDENTITY)
    assert np.array_equal(reopened.read(keys[order]), vectors[order])
    assert reopened.dim == 8
    assert reopened.overlong(keys).tolist() == truncated.tolist()


def test_a_missing_key_is_told_apart(tmp_path: Path) -> None:
    keys, vectors, truncated = rows(10)
    with VectorStore(tmp_path, IDENTITY) as written:
        written.append(keys[:5], vectors[:5], truncated[:5])
    assert written.holds(keys).tolist() == [True] * 5 + [False] * 5
    with pytest.raises(KeyError, match="5 of 10 texts have no stored vector"):
        written.read(keys)


def test_full_shards_are_sealed_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SHARD_ROWS", 10)
    written = VectorStore(tmp_path, IDENTITY)
    for start in range(0, 30, 5):
        written.append(*(part[start : start + 5] for part in rows(30)))
    assert len(list(written.folder.glob("shard-*.npy"))) == 3


def test_a_shard_without_its_ledger_line_does_not_count(tmp_path: Path) -> None:
    keys, vectors, truncated = rows(10)
    with VectorStore(tmp_path, IDENTITY) as written:
        written.append(keys, vectors, truncated)
    (written.folder / "ledger.jsonl").unlink()
    assert not VectorStore(tmp_path, IDENTITY).holds(keys).any()


def test_a_torn_last_line_is_cut_off_and_its_rows_are_redone(tmp_path: Path) -> None:
    keys, vectors, truncated = rows(20)
    with VectorStore(tmp_path, IDENTITY) as written:
        written.append(keys[:10], vectors[:10], truncated[:10])
        written.seal()
        written.append(keys[10:], vectors[10:], truncated[10:])
    ledger = written.folder / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-7])
    reopened = VectorStore(tmp_path, IDENTITY)
    assert reopened.holds(keys).tolist() == [True] * 10 + [False] * 10
    with reopened:
        reopened.append(keys[10:], vectors[10:], truncated[10:])
    assert np.array_equal(VectorStore(tmp_path, IDENTITY).read(keys), vectors)


def test_another_identity_is_another_folder(tmp_path: Path) -> None:
    keys, vectors, truncated = rows(3)
    with VectorStore(tmp_path, IDENTITY) as written:
        written.append(keys, vectors, truncated)
    other = PassIdentity("m", "r1", "d1", "float32", 128, None, None)
    assert fingerprint(other) != fingerprint(IDENTITY)
    assert not VectorStore(tmp_path, other).holds(keys).any()


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    keys, vectors, truncated = rows(3)
    with VectorStore(tmp_path, IDENTITY) as written:
        written.append(keys, vectors, truncated)
    described = json.loads((written.folder / "pass.json").read_text())
    (written.folder / "pass.json").write_text(json.dumps(resealed({**described, "store_version": 99})))
    with pytest.raises(OutputError, match="newer version of ultimate-embedder"):
        VectorStore(tmp_path, IDENTITY)


def test_the_index_tells_keys_apart_that_share_their_first_half() -> None:
    index = KeyIndex()
    keys = np.array([[7, 1], [7, 2], [8, 1], [7, 3]], np.uint64)
    index.add(0, keys)
    shards, found = index.unpack(index.find(keys))
    assert shards.tolist() == [0] * 4
    assert found.tolist() == [0, 1, 2, 3]
    assert index.find(np.array([[7, 4], [9, 1], [0, 0]], np.uint64)).tolist() == [-1, -1, -1]


# facts about the encoder


def test_facts_about_the_encoder_are_kept_with_the_vectors(tmp_path: Path) -> None:
    facts = EncoderFacts(512, "passage: ")
    with VectorStore(tmp_path / "a", IDENTITY) as written:
        written.describe_encoder(facts)
        written.append(*rows(3))
    assert VectorStore(tmp_path / "a", IDENTITY).encoder_facts == facts
    copy = VectorStore(tmp_path / "b", IDENTITY)
    copy.copy_from(tmp_path / "a")
    assert VectorStore(tmp_path / "b", IDENTITY).encoder_facts == facts


def test_a_store_of_an_earlier_version_gets_them_when_they_are_known(tmp_path: Path) -> None:
    with VectorStore(tmp_path, IDENTITY) as written:
        written.append(*rows(3))
    reopened = VectorStore(tmp_path, IDENTITY)
    assert reopened.encoder_facts is None
    reopened.describe_encoder(EncoderFacts(512, ""))
    again = VectorStore(tmp_path, IDENTITY)
    assert again.encoder_facts == EncoderFacts(512, "")
    assert again.holds(rows(3)[0]).all()
