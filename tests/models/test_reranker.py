"""Rerankers: found as models are found, loaded without surprises, scores like the reference's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sentence_transformers import CrossEncoder

from tests.support.hub_here import keep_own_code_below
from tests.support.tiny_models import tiny_cross_encoder, tiny_list_reranker, tiny_model
from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import ModelError
from ultimate_embedder.events import Event
from ultimate_embedder.models import Reranker, find_spec, load_reranker, resolve_reranker
from ultimate_embedder.models.reranker import ListReranker
from ultimate_embedder.types import ResolvedModel

KEY, CODE_KEY = "bge-reranker-v2-m3", "jina-reranker-v3"
QUERY = "what is it?"
TEXTS = ["a screw", "a hammer, and a nail " * 8, "it is what it is", "x" * 2000, "ж"]


def resolve(name: str | Path, access: HubAccess | None = None) -> ResolvedModel:
    ignored: list[Event] = []
    return resolve_reranker(str(name), access or HubAccess(offline=True), ignored.append)


def score(reranker: Reranker, texts: list[str], rows: list[int] | None = None) -> np.ndarray:
    pairs = reranker.pairs(QUERY, texts)
    chosen = np.array(rows if rows is not None else range(len(texts)))
    return np.asarray(reranker.forward(reranker.batch(pairs, chosen)).numpy()[:, 0])


def changed(source: Path, folder: Path, **config: Any) -> Path:
    """A copy of a model with other words in its configuration."""
    shutil.copytree(source, folder)
    before = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(before | config))
    return folder


@pytest.fixture(scope="module")
def cross_encoder() -> Reranker:
    return load_reranker(resolve(tiny_cross_encoder()), "float32")


@pytest.fixture
def own_code_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of models is copied below `tmp_path`, and nowhere else."""
    keep_own_code_below(tmp_path, monkeypatch)


def with_own_code(folder: Path) -> ResolvedModel:
    """A model in a folder as if it had come from the hub under the name of one with code of its own."""
    return ResolvedModel(CODE_KEY, find_spec(CODE_KEY), folder, "cache", "commit", "digest", 0)


def test_scores_are_those_of_the_reference(cross_encoder: Reranker) -> None:
    reference = CrossEncoder(str(tiny_cross_encoder()), device="cpu")
    expected = reference.predict([(QUERY, text) for text in TEXTS], show_progress_bar=False)
    np.testing.assert_allclose(score(cross_encoder, TEXTS), expected, atol=1e-6)
    assert len(set(expected.tolist())) == len(TEXTS)


def test_a_score_does_not_depend_on_the_rest_of_the_batch(cross_encoder: Reranker) -> None:
    together = score(cross_encoder, TEXTS)
    alone = [score(cross_encoder, TEXTS, [row])[0] for row in range(len(TEXTS))]
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_scores_come_in_the_order_of_the_rows(cross_encoder: Reranker) -> None:
    np.testing.assert_allclose(score(cross_encoder, TEXTS, [4, 0]), score(cross_encoder, TEXTS)[[4, 0]], atol=1e-6)


def test_lengths_are_of_query_and_text_together_up_to_the_limit(cross_encoder: Reranker) -> None:
    lengths = cross_encoder.pairs(QUERY, TEXTS).lengths
    assert lengths[0] == len("<") + len(QUERY) + len(">") + len(TEXTS[0]) + len(">")
    assert lengths[3] == 512


def test_a_batch_counts_its_tokens_with_and_without_padding(cross_encoder: Reranker) -> None:
    pairs = cross_encoder.pairs(QUERY, TEXTS)
    batch = cross_encoder.batch(pairs, np.array([0, 1]))
    assert batch.tokens == pairs.lengths[0] + pairs.lengths[1]
    assert batch.padded_tokens == 2 * pairs.lengths[1]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_reranker_is_loaded_onto_the_host_in_the_precision_asked_for(dtype: str) -> None:
    loaded = load_reranker(resolve(tiny_cross_encoder()), dtype)
    assert (loaded.name, loaded.dtype, str(loaded.device)) == ("tiny-cross-encoder", dtype, "cpu")
    assert not loaded.model.training


def test_an_embedder_is_refused_by_its_name() -> None:
    with pytest.raises(ModelError, match="bge-m3 is an embedding model, not a reranker"):
        resolve("bge-m3")


def test_an_embedder_in_a_folder_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "bare"  # without the files of sentence-transformers
    bare.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model("bert") / name, bare)
    for folder in (tiny_model("bert"), bare):
        with pytest.raises(ModelError, match="is an embedding model, not a reranker"):
            load_reranker(resolve(folder), "float32")


def test_a_language_model_that_was_not_trained_to_score_is_refused(tmp_path: Path) -> None:
    folder = changed(tiny_cross_encoder(), tmp_path / "mlm", architectures=["XLMRobertaForMaskedLM"])
    with pytest.raises(ModelError, match="mlm is an embedding model, not a reranker"):
        load_reranker(resolve(folder), "float32")


def test_a_reranker_that_sentence_transformers_saved_is_loaded(tmp_path: Path, cross_encoder: Reranker) -> None:
    cross_encoder.model.save(str(tmp_path / "saved"))
    again = load_reranker(resolve(tmp_path / "saved"), "float32")
    np.testing.assert_allclose(score(again, TEXTS), score(cross_encoder, TEXTS), atol=1e-6)


def test_a_broken_reranker_is_named_with_its_folder(tmp_path: Path) -> None:
    folder = changed(tiny_cross_encoder(), tmp_path / "broken", model_type="no-such-architecture")
    with pytest.raises(ModelError, match=rf"broken cannot be loaded from {folder}"):
        load_reranker(resolve(folder), "float32")


def test_a_reranker_that_is_not_here_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"models pull {KEY}"):
        resolve(KEY, HubAccess(cache_dir=tmp_path, offline=True))


def test_code_of_a_reranker_is_refused_unless_it_is_trusted() -> None:
    with pytest.raises(ModelError, match=f"--trust-remote-code {CODE_KEY}"):
        resolve(CODE_KEY)


@pytest.mark.usefixtures("own_code_kept_apart")
def test_code_of_a_reranker_is_not_run_without_trust_even_if_it_is_there() -> None:
    with pytest.raises(ModelError, match=f"{CODE_KEY} would run code .*'auto_map'"):
        load_reranker(with_own_code(tiny_list_reranker()), "float32")


@pytest.mark.usefixtures("own_code_kept_apart")
def test_a_reranker_with_code_of_its_own_scores_a_whole_batch() -> None:
    reranker = load_reranker(with_own_code(tiny_list_reranker()), "float32", trusted=[CODE_KEY])
    letters = load_file(tiny_list_reranker() / "model.safetensors")["letters.weight"]
    means = [letters[list(text.encode())].mean(0) for text in [QUERY, *TEXTS]]
    np.testing.assert_allclose(score(reranker, TEXTS), np.array(means[1:]) @ means[0], rtol=1e-4)


@pytest.mark.usefixtures("own_code_kept_apart")
def test_such_a_reranker_can_be_a_folder_that_is_trusted_by_its_path() -> None:
    folder = tiny_list_reranker()
    found = resolve(folder, HubAccess(offline=True, trusted=(str(folder),)))
    assert isinstance(load_reranker(found, "float32", trusted=[str(folder)]), ListReranker)


@pytest.mark.usefixtures("own_code_kept_apart")
def test_code_without_rerank_is_refused(tmp_path: Path) -> None:
    folder = changed(tiny_list_reranker(), tmp_path / "other")
    code = folder / "modeling_own.py"
    code.write_text(code.read_text().replace("def rerank(", "def sort("))
    with pytest.raises(ModelError, match=f"{CODE_KEY} has no 'rerank' in its own code"):
        load_reranker(with_own_code(folder), "float32", trusted=[CODE_KEY])
