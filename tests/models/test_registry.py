from __future__ import annotations

import dataclasses

import pytest

from ultimate_embedder.config import DEFAULT_MODEL
from ultimate_embedder.models import MODELS, find_spec
from ultimate_embedder.models.registry import unknown_model
from ultimate_embedder.types import ModelSpec

KEYS = [spec.key for spec in MODELS]


@pytest.mark.parametrize("spec", MODELS, ids=KEYS)
def test_a_model_is_found_by_every_name_it_has_in_any_case(spec: ModelSpec) -> None:
    for name in (spec.key, spec.hub_id, *spec.aliases):
        assert find_spec(name) is spec
        assert find_spec(name.upper()) is spec


def test_no_two_models_share_a_name() -> None:
    names = [name.lower() for spec in MODELS for name in (spec.key, spec.hub_id, *spec.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("spec", MODELS, ids=KEYS)
def test_an_embedder_has_dimensions_and_a_reranker_has_none(spec: ModelSpec) -> None:
    assert (spec.dim > 0) == (spec.kind == "embedder")
    assert spec.max_tokens > 0


@pytest.mark.parametrize("spec", MODELS, ids=KEYS)
def test_shorter_dimensions_rise_up_to_the_full_one(spec: ModelSpec) -> None:
    dims = spec.matryoshka_dims
    assert list(dims) == sorted(set(dims))
    assert not dims or dims[-1] == spec.dim


@pytest.mark.parametrize("spec", MODELS, ids=KEYS)
def test_an_entry_is_plain_data_that_nothing_changes(spec: ModelSpec) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.dim = 1  # type: ignore[misc]
    assert spec.note


@pytest.mark.parametrize("name", ["jina-code-embeddings-1.5b", "bge-m3", "all-minilm-l6-v2", "qwen3-embedding-0.6b"])
def test_the_models_of_existing_notebooks_are_known(name: str) -> None:
    assert find_spec(name) is not None


def test_the_default_model_needs_no_remote_code() -> None:
    spec = find_spec(DEFAULT_MODEL)
    assert spec is not None
    assert (spec.kind, spec.remote_code) == ("embedder", False)


@pytest.mark.parametrize("name", ["", "bge", "BAAI", "no-such-model", "./bge-m3"])
def test_an_unknown_name_finds_nothing(name: str) -> None:
    assert find_spec(name) is None


def test_an_unknown_model_is_named_with_what_was_meant_and_where_to_look() -> None:
    assert str(unknown_model("bge-m")) == (
        "bge-m is neither a known model nor a folder. Did you mean bge-m3? "
        "'ultimate-embedder models list' shows the names; a folder needs a path, such as ./my-model."
    )


def test_an_unknown_model_far_from_any_name_gets_no_suggestion() -> None:
    assert "Did you mean" not in str(unknown_model("zzz"))
