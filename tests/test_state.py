"""State files: what is read is what was written, or it is told that it is damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.damage import WRONG_VALUES, Damage, damages
from ultimate_embedder import state
from ultimate_embedder.state import Damaged, Fields, UnfitError, read_state, write_state

DATA = {"name": "日本", "rows": 3, "share": 0.1, "inner": {"list": ["a", "b"]}}


def parse(fields: Fields) -> dict[str, Any]:
    inner = fields.inner("inner").texts("list")
    values = {"name": fields.text("name"), "rows": fields.count("rows"), "share": fields.number("share")}
    return {**values, "inner": {"list": inner}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_state(tmp_path / "a.json", DATA)
    return tmp_path / "a.json"


def problem(path: Path) -> str:
    found = read_state(path, parse)
    assert isinstance(found, Damaged)
    assert str(found) == f"{path} {found.problem}"
    return found.problem


def test_a_number_that_no_float_can_hold_is_damage(path: Path) -> None:
    path.write_text(json.dumps(state.sealed({**DATA, "more": 10**400})))
    assert "it has a number of 401 digits" in problem(path)


def test_what_is_written_is_read(path: Path) -> None:
    assert read_state(path, parse) == DATA


def test_a_file_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert read_state(tmp_path / "a.json", parse) is None
    assert read_state(tmp_path / "a.json" / "b.json", parse) is None


def test_a_file_without_checksum_is_read_if_it_has_just_the_known_fields(path: Path) -> None:
    path.write_text(json.dumps(DATA))
    assert read_state(path, parse) == DATA
    path.write_text(json.dumps({**DATA, "inner": {"list": [], "more": 1}}))
    assert problem(path) == "is damaged (it has the unknown field 'more', and no checksum)"


def test_a_later_version_may_write_more_fields(path: Path) -> None:
    write_state(path, {**DATA, "more": 1})
    assert read_state(path, parse) == DATA


@pytest.mark.parametrize(
    "damage", [pytest.param(each, id=words) for words, each in damages().items() if words != "a link to nothing"]
)
def test_damage_is_told_and_the_file_can_be_written_again(path: Path, damage: Damage) -> None:
    before = path.read_bytes()
    damage(path)
    if before.strip() != (path.read_bytes().strip() if path.is_file() else b""):  # the last byte is a newline
        assert problem(path).startswith("is damaged (")
    write_state(path, DATA)
    assert read_state(path, parse) == DATA


def test_every_flipped_bit_is_noticed(path: Path) -> None:
    content = path.read_bytes()
    for position in range(0, len(content) * 8, 5):
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        found = read_state(path, parse)
        assert isinstance(found, Damaged) or found == DATA  # white space does not matter


@pytest.mark.parametrize("name", ["name", "rows", "share", "inner"])
@pytest.mark.parametrize("value", WRONG_VALUES, ids=repr)
def test_values_of_another_type_are_told(path: Path, name: str, value: Any) -> None:
    fits = {"name": isinstance(value, str) and value.isascii(), "share": value in (-1, 1.5) and value is not True}
    path.write_text(json.dumps({**DATA, name: value}))
    if fits.get(name) or (name == "share" and value == state.LARGEST_COUNT) or (name == "share" and value == 10**30):
        assert not isinstance(read_state(path, parse), Damaged)
    else:
        assert name in problem(path) or "list" in problem(path)


def test_a_checksum_that_is_null_is_not_taken_for_none(path: Path) -> None:
    path.write_text(json.dumps({**DATA, "checksum": None}))
    assert problem(path) == "is damaged (its checksum does not match)"


def test_a_pipe_is_not_waited_for(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)
    assert problem(path) == "is damaged (it is not a file)"


def test_a_file_that_is_far_too_large_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LARGEST_BYTES", 10)
    assert "bytes)" in problem(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_told(path: Path) -> None:
    path.chmod(0)
    assert problem(path) == "cannot be read (Permission denied)"


def test_a_file_that_the_disk_does_not_give_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    assert problem(path) == "cannot be read (Input/output error)"


def test_a_missing_field_is_named() -> None:
    with pytest.raises(UnfitError, match="it has no field 'rows'"):
        Fields({}, sealed=False).count("rows")
