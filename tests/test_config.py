from __future__ import annotations

from pathlib import Path

import pytest

from ultimate_embedder.config import ModelChoice, parse_model_choice, suggest
from ultimate_embedder.errors import UsageError


def test_a_nonsense_word_gets_no_suggestion() -> None:
    assert suggest("zzzz", ["npy", "parquet"]) == ""


def test_the_case_of_a_word_does_not_hide_what_was_meant() -> None:
    assert suggest("DOCLING", ["Docling", "qdrant"]) == " Did you mean Docling?"


@pytest.mark.parametrize(
    ("word", "choice"),
    [
        ("bge-m3", ModelChoice("bge-m3", 1.0)),
        ("bge-m3=0.7", ModelChoice("bge-m3", 0.7)),
        ("./models/mine=2", ModelChoice("./models/mine", 2.0)),
        ("a=b=0.5", ModelChoice("a=b", 0.5)),
    ],
)
def test_a_model_may_carry_a_weight(word: str, choice: ModelChoice) -> None:
    assert parse_model_choice(word) == choice


def test_a_weight_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        parse_model_choice("bge-m3=heavy")
    assert str(caught.value) == "--models bge-m3=heavy: 'heavy' is not a number. Write KEY=0.7, for example."


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf"])
def test_a_weight_must_be_positive_and_finite(weight: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_model_choice(f"bge-m3={weight}")
    assert str(caught.value) == f"--models bge-m3={weight}: a weight must be a positive number."


def test_a_weight_without_a_model_is_refused() -> None:
    with pytest.raises(UsageError):
        parse_model_choice("=0.5")


@pytest.mark.parametrize("name", ["size=small", "lr=0.1"])
def test_a_model_folder_may_have_an_equals_sign_in_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert parse_model_choice(str(tmp_path / name)) == ModelChoice(str(tmp_path / name))
