"""The note that fp16 was too narrow for a pass."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.damage import Damage, damages
from ultimate_embedder.types import PassIdentity
from ultimate_embedder.vectors import VectorStore, fingerprint, note_overflow, overflowed, settled_identity

HALF = PassIdentity("m", "r", "d", "float16", None, None, None)


def test_a_pass_without_a_note_is_what_it_is(tmp_path: Path) -> None:
    assert settled_identity(tmp_path, HALF) == HALF


def test_a_pass_with_a_note_is_in_fp32_and_its_vectors_in_fp16_are_gone(tmp_path: Path) -> None:
    with VectorStore(tmp_path, HALF) as store:
        store.append(np.ones((1, 2), np.uint64), np.ones((1, 4), np.float32), np.zeros(1, bool))
    note_overflow(tmp_path, HALF, texts=100, unusable=3)
    assert settled_identity(tmp_path, HALF) == replace(HALF, dtype="float32")
    assert [path.name for path in store.folder.iterdir()] == ["overflow.json"]
    assert VectorStore(tmp_path, HALF).dim is None


def test_other_passes_are_not_meant(tmp_path: Path) -> None:
    note_overflow(tmp_path, HALF, texts=100, unusable=3)
    for other in (replace(HALF, model="n"), replace(HALF, dtype="bfloat16"), replace(HALF, dim=64)):
        assert settled_identity(tmp_path, other) == other


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"pass": "other"}', '{"sha256": 1}'])
def test_a_damaged_note_counts_for_nothing(tmp_path: Path, damage: str) -> None:
    note_overflow(tmp_path, HALF, texts=100, unusable=3)
    (tmp_path / fingerprint(HALF) / "overflow.json").write_text(damage)
    assert not overflowed(tmp_path, HALF)


def test_a_note_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    found = {"pass": fingerprint(HALF), "computed_in": "float32", "texts": 100, "unusable": 3}
    checksum = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
    path = tmp_path / fingerprint(HALF) / "overflow.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**found, "sha256": checksum}))
    assert overflowed(tmp_path, HALF)
    path.write_text(json.dumps({**found, "sha256": checksum, "unusable": 4}))
    assert not overflowed(tmp_path, HALF)


@pytest.mark.parametrize("damage", [pytest.param(each, id=words) for words, each in damages().items()])
def test_whatever_happens_to_a_note_it_can_be_written_again(tmp_path: Path, damage: Damage) -> None:
    note_overflow(tmp_path, HALF, texts=100, unusable=3)
    damage(tmp_path / fingerprint(HALF) / "overflow.json")
    overflowed(tmp_path, HALF)
    note_overflow(tmp_path, HALF, texts=100, unusable=3)
    assert overflowed(tmp_path, HALF)


def test_a_note_of_another_pass_counts_for_nothing(tmp_path: Path) -> None:
    note_overflow(tmp_path, HALF, texts=100, unusable=3)
    other = replace(HALF, model="n")
    (tmp_path / fingerprint(HALF)).rename(tmp_path / fingerprint(other))
    assert not overflowed(tmp_path, other)
