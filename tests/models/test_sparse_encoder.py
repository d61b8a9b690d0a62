"""Sparse encoders give the vectors of sentence-transformers, in less memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder

from tests.support.tiny_models import tiny_inference_free, tiny_model, tiny_splade
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.errors import ModelError, UnknownModelError
from ultimate_embedder.models import SparseModel, load_sparse_model, resolve_model, small_pieces
from ultimate_embedder.models.vocabulary_head import PIECE_TOKENS

TEXTS = [f"text number {n} about " + "mice and clocks " * (n % 7) for n in range(12)] + ["a"]


def load(folder: Path, **options: Any) -> SparseModel:
    return load_sparse_model(resolve_model(str(folder), kind="sparse"), "float32", **options)


def encode(model: SparseModel, texts: list[str], packed: bool = False) -> np.ndarray:
    tokenized = model.tokenize(texts)
    order = np.argsort(-tokenized.lengths, kind="stable")
    vectors = np.empty((len(texts), model.dim), np.float32)
    vectors[order] = model.forward(model.batch(tokenized, order, packed)).numpy()
    return vectors


def reference(folder: Path, texts: list[str] = TEXTS) -> np.ndarray:
    model = SparseEncoder(str(folder), device="cpu")
    return np.asarray(model.encode_document(texts, convert_to_sparse_tensor=False))


@pytest.mark.parametrize(
    "options",
    [{}, {"pooling": "sum"}, {"architecture": "distilbert"}, {"prompts": True}, {"activation": "log1p_relu"}],
    ids=str,
)
def test_vectors_are_those_of_sentence_transformers(options: dict[str, Any]) -> None:
    folder = tiny_splade(**options)
    model, expected = load(folder), reference(folder)
    assert 0 < (expected > 0).mean() < 0.6
    assert np.abs(encode(model, TEXTS) - expected).max() < 1e-4
    assert model.can_pack(CpuDevice())
    assert np.abs(encode(model, TEXTS, packed=True) - expected).max() < 1e-4


def test_logits_are_never_there_for_all_tokens() -> None:
    model = load(tiny_splade())
    shapes: list[torch.Size] = []
    linear = torch.nn.functional.linear

    def note(values: torch.Tensor, *more: Any) -> torch.Tensor:
        out = linear(values, *more)
        if out.shape[-1] == model.dim:
            shapes.append(out.shape)
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", note)
        vectors = encode(model, TEXTS)
        longest = max(shape[1] for shape in shapes)
        assert longest == PIECE_TOKENS < model.tokenize(TEXTS).lengths.max()
        shapes.clear()
        with small_pieces(model.model):
            assert np.abs(encode(model, TEXTS) - vectors).max() < 1e-5
        assert {shape[1] for shape in shapes} == {1}


def test_what_the_vocabulary_takes_is_predicted() -> None:
    narrow, wide = load(tiny_splade()), load(tiny_splade(vocabulary=20_000))
    more = wide.peak_bytes(20, 64, None) - narrow.peak_bytes(20, 64, None)
    logits = 20 * PIECE_TOKENS * (20_000 - narrow.dim) * 4
    assert 0.8 * logits < more < 1.5 * logits
    assert narrow.weight_bytes < wide.weight_bytes < narrow.weight_bytes + 1.1 * 64 * 20_000 * 4  # tied: once


def test_a_model_may_keep_only_the_largest_values(tmp_path: Path) -> None:
    folder = tmp_path / "few"
    shutil.copytree(tiny_splade(), folder)
    settings = folder / "config_sentence_transformers.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"max_active_dims": 5}))
    vectors = encode(load(folder), TEXTS)
    assert ((vectors > 0).sum(axis=1) <= 5).all()
    assert np.abs(vectors - reference(folder)).max() < 1e-4


def test_a_model_that_encodes_queries_in_another_way_has_two_encoders() -> None:
    folder = tiny_inference_free()
    own = SparseEncoder(str(folder), device="cpu")
    documents, queries = load(folder), load(folder, for_queries=True)
    expected = np.asarray(own.encode_document(TEXTS, convert_to_sparse_tensor=False))
    assert np.abs(encode(documents, TEXTS) - expected).max() < 1e-4
    asked = np.asarray(own.encode_query(TEXTS[:3], convert_to_sparse_tensor=False))
    assert np.abs(encode(queries, TEXTS[:3]) - asked).max() < 1e-6
    assert (asked > 0).sum() < (expected[:3] > 0).sum()


def test_a_model_with_dense_vectors_is_refused() -> None:
    with pytest.raises(ModelError, match=r"tiny-bert is no sparse encoder .* models with dense vectors go to --models"):
        load(tiny_model("bert"))
    with pytest.raises(UnknownModelError, match="bge-m3 is a model with dense vectors, not a sparse encoder"):
        resolve_model("bge-m3", kind="sparse")
    with pytest.raises(UnknownModelError, match="Write --sparse splade=granite-embedding-30m-sparse"):
        resolve_model("granite-embedding-30m-sparse")


def test_nothing_is_loaded_that_could_run_code(tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    shutil.copytree(tiny_splade(), folder)
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "antigravity.SpladePooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match="would run code"):
        load(folder)
