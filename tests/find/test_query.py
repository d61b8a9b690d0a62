"""Queries, encoded as the documents of an output were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteChunks
from tests.support.attack_code import MARKER
from tests.support.attacks import module_of_the_folder
from tests.support.hub_here import keep_own_code_below
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed, open_output
from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.files import folder_sha256
from ultimate_embedder.find import QueryModels, open_query_encoder, read_recorded
from ultimate_embedder.state import write_state

OFFLINE = HubAccess(offline=True)
TEXTS = [f"text {number}" for number in range(5)]


@pytest.fixture
def output(write_chunks: WriteChunks, tmp_path: Path) -> Path:
    embed(write_chunks(TEXTS), tmp_path / "out", models=str(tiny_model("bert")), max_tokens=16, quiet=True)
    return tmp_path / "out"


def test_documents_get_the_vectors_that_the_run_gave_them(output: Path) -> None:
    encoder = open_query_encoder(open_output(output), "docs", OFFLINE)
    stored = np.load(open_output(output)["docs"].embeddings)
    assert np.allclose(encoder.encode_documents(TEXTS)[""], stored, atol=1e-5)
    assert encoder.encoders[0].max_tokens == 16


def test_a_collection_that_does_not_exist_is_refused_in_words(output: Path) -> None:
    with pytest.raises(UsageError, match=r"has no collection 'dogs'\. Its collections: docs"):
        open_query_encoder(open_output(output), "dogs", OFFLINE)


def test_without_a_summary_the_exports_say_which_models_are_needed(output: Path) -> None:
    (output / "summary.json").unlink()
    recorded = read_recorded(open_output(output), "docs")
    assert [model.name for model in recorded.models] == ["tiny-bert"]
    assert recorded.models[0].max_tokens == 16
    with pytest.raises(ModelError, match=r"tiny-bert is not in the registry, and there is no summary .* --model DIR"):
        open_query_encoder(open_output(output), "docs", OFFLINE)
    models = QueryModels(None, OFFLINE, folders=[str(tiny_model("bert"))])
    vector = models.encode_query("text 1", recorded, [""])[""]
    assert isinstance(vector, np.ndarray)
    assert vector.shape == (64,)


def test_an_output_that_does_not_say_how_it_was_made_is_refused_in_words(output: Path) -> None:
    (output / "summary.json").unlink()
    (output / "docs" / "store" / "exports.json").unlink()
    (output / "docs" / "chunks.parquet").unlink()
    with pytest.raises(UsageError, match=r"no export that says which models .* no summary of a finished run"):
        open_query_encoder(open_output(output), "docs", OFFLINE)


@pytest.mark.parametrize(
    "damage",
    [{"passes": []}, {"passes": [{"model": 3}]}, {"vectors": [{"name": "", "dim": "x"}]}, {"fusion": {"method": "x"}}],
)
def test_a_damaged_record_of_how_vectors_were_made_is_named(output: Path, damage: dict[str, Any]) -> None:
    path = output / "docs" / "store" / "exports.json"
    journal = json.loads(path.read_text())
    journal.pop("checksum")
    journal["qdrant"]["origin"] |= damage
    write_state(path, journal)
    with pytest.raises(UsageError, match=r"the record of how the qdrant export in .* was made is damaged"):
        read_recorded(open_output(output), "docs")


def test_the_summary_of_somebody_else_does_not_make_us_run_the_code_of_a_folder(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARKER, str(tmp_path / "marker"))
    keep_own_code_below(tmp_path, monkeypatch)
    evil = Path(shutil.copytree(tiny_model("bert"), tmp_path / "coderankembed"))
    module_of_the_folder(evil)
    summary = json.loads((output / "summary.json").read_text())
    for model in summary["collections"][0]["models"]:
        model |= {"path": str(evil), "digest": folder_sha256(evil)}
    summary["options"]["models"][0]["name"] = str(evil)
    (output / "summary.json").write_text(json.dumps(summary))
    (output / "docs" / "store" / "exports.json").unlink()
    (output / "docs" / "chunks.parquet").unlink()
    trusting = HubAccess(offline=True, trusted=("coderankembed",))  # the model of that name in the registry
    for access in (OFFLINE, trusting):
        with pytest.raises(ModelError, match=r"would run code .*modules.json names the class 'evil.Module'"):
            open_query_encoder(open_output(output), "docs", access)
    assert not (tmp_path / "marker").exists()
