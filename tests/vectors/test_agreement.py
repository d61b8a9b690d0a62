"""`agreement.json`: how near vectors in low precision are to fp32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.damage import Damage, damages
from ultimate_embedder.state import Damaged
from ultimate_embedder.vectors import Agreement, read_agreement, write_agreement

FOUND = Agreement(64, 0.9991, 0.98)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_agreement(tmp_path / "0123", FOUND)
    return tmp_path / "0123"


def test_what_was_measured_is_read_again(folder: Path) -> None:
    assert read_agreement(folder) == FOUND


def test_that_of_an_earlier_version_is_read(folder: Path) -> None:
    values = {"texts": 64, "mean_cosine": 0.9991, "worst_cosine": 0.98}
    (folder / "agreement.json").write_text(json.dumps(values))
    assert read_agreement(folder) == FOUND


@pytest.mark.parametrize("damage", [pytest.param(each, id=words) for words, each in damages().items()])
def test_damage_is_told(folder: Path, damage: Damage) -> None:
    damage(folder / "agreement.json")
    found = read_agreement(folder)
    assert found in (None, FOUND) or isinstance(found, Damaged)  # a link to nothing, a newline less


def test_that_of_another_pass_is_told(folder: Path) -> None:
    other = folder.rename(folder.with_name("4567"))
    found = read_agreement(other)
    assert isinstance(found, Damaged)
    assert found.problem == "is damaged (it is of another pass)"
