from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ultimate_embedder.config import (
    DEFAULT_MODEL,
    EXPORT_KINDS,
    HubAccess,
    ModelChoice,
    RunConfig,
    make_config,
    parse_model_choice,
    suggest,
)
from ultimate_embedder.errors import UsageError


@pytest.fixture
def chunks(tmp_path: Path) -> Path:
    folder = tmp_path / "chunks"
    folder.mkdir()
    return folder


def refusal(chunks: Path, output: Path | None = None, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        make_config(chunks, output or chunks.parent / "out", **options)
    return str(caught.value)


def config(chunks: Path, **options: Any) -> RunConfig:
    return make_config(chunks, chunks.parent / "out", **options)


def test_the_defaults_are_one_model_and_every_export(chunks: Path) -> None:
    made = config(chunks)
    assert made == RunConfig(chunks=chunks, output=chunks.parent / "out", hub=HubAccess(offline=True))
    assert made.models == (ModelChoice(DEFAULT_MODEL, 1.0),)
    assert made.exports == EXPORT_KINDS


def test_a_config_cannot_be_changed(chunks: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config(chunks).mode = "single"  # type: ignore[misc]


def test_an_unknown_option_is_an_error(chunks: Path) -> None:
    with pytest.raises(TypeError, match="modle"):
        config(chunks, modle="bge-m3")


@pytest.mark.parametrize("value", ["a,b", " a , ,b ", ["a", "b"], ("a", "b")])
def test_lists_are_words_with_commas_or_sequences(chunks: Path, value: Any) -> None:
    made = config(chunks, collections=value, models=value)
    assert made.collections == ("a", "b")
    assert [choice.name for choice in made.models] == ["a", "b"]


def test_an_export_asked_for_twice_is_written_once(chunks: Path) -> None:
    assert config(chunks, exports="npy,jsonl,npy").exports == ("npy", "jsonl")


def test_a_chunk_folder_that_is_not_there_is_refused(chunks: Path) -> None:
    missing = chunks / "nowhere"
    assert refusal(missing) == f"{missing} does not exist. Give the folder that holds your chunk files."


def test_an_output_that_is_a_file_is_refused(chunks: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    file.touch()
    assert refusal(chunks, file) == f"--output {file} is a file. Give a folder, or a name that is still free."


@pytest.mark.parametrize("detour", ["", "../chunks", "sub/.."])
def test_the_chunk_folder_cannot_be_the_output(chunks: Path, detour: str) -> None:
    (chunks / "sub").mkdir()
    output = chunks / detour
    assert refusal(chunks, output) == f"--output {output} is the chunk folder itself. Give another folder."


@pytest.mark.parametrize("models", ["", " , ", []])
def test_no_model_at_all_is_refused(chunks: Path, models: Any) -> None:
    expected = "--models is empty. 'ultimate-embedder models list' shows the names."
    assert refusal(chunks, models=models) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mode": "sequental"},
            "--mode sequental: not one of auto, single, simultaneous, sequential, exclusive. Did you mean sequential?",
        ),
        ({"mode": ""}, "--mode : not one of auto, single, simultaneous, sequential, exclusive."),
        ({"precision": "FP16"}, "--precision FP16: not one of auto, fp32, fp16. Did you mean fp16?"),
        ({"exports": "npy,parket"}, "--export parket: not one of npy, parquet, jsonl, qdrant. Did you mean parquet?"),
        ({"max_tokens": 7}, "--max-tokens 7: must be at least 8."),
        ({"max_tokens": -1}, "--max-tokens -1: must be at least 8."),
        ({"dim": 0}, "--dim 0: must be at least 1."),
    ],
)
def test_a_wrong_word_is_named_with_what_it_may_be(chunks: Path, options: dict[str, Any], message: str) -> None:
    assert refusal(chunks, **options) == message


@pytest.mark.parametrize("devices", ["auto", "cpu", "cuda", "simulated:2x15GiB"])
def test_devices_are_named_in_one_word(chunks: Path, devices: str) -> None:
    assert config(chunks, devices=devices).devices == devices


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


def test_the_summary_goes_into_the_output_folder_unless_told_otherwise(chunks: Path, tmp_path: Path) -> None:
    assert config(chunks).summary_path == tmp_path / "out" / "summary.json"
    assert config(chunks, summary=str(tmp_path / "s.json")).summary_path == tmp_path / "s.json"


def test_the_options_are_plain_json(chunks: Path, tmp_path: Path) -> None:
    made = config(chunks, models="bge-m3=0.5", summary=tmp_path / "s.json", dim=64)
    plain = json.loads(json.dumps(made.as_dict()))
    assert set(plain) == {field.name for field in dataclasses.fields(RunConfig)}
    assert plain["chunks"] == str(chunks)
    assert plain["summary"] == str(tmp_path / "s.json")
    assert plain["models"] == [{"name": "bge-m3", "weight": 0.5}]
