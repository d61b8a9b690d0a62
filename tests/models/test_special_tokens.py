"""Texts that spell out special tokens get the vectors of sentence-transformers, however their rows are run."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from tests.support.tiny_models import ARCHITECTURES, Architecture, tiny_model
from ultimate_embedder import embed
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.models import Encoder, load_encoder, resolve_model, row_cosines

SPELLED_OUT = ("<pad>", "[PAD]", "</s>", "<mask>", "<|endoftext|>")
TEXTS = [
    *(f"Before it, {token} and behind it" for token in SPELLED_OUT),
    *SPELLED_OUT,
    "<pad> at the beginning",
    "at the end <pad>",
    "<pad><pad> often <pad>, and again <pad> and " * 3,
    "Longer than the window of a layer. " * 14,
    *(f"Nothing special here, {'word ' * number}" for number in range(8)),
]
MODELS: tuple[Architecture, ...] = (*ARCHITECTURES, "modernbert")


def load(architecture: Architecture) -> Encoder:
    return load_encoder(resolve_model(str(tiny_model(architecture))), "float32", "cpu")


@functools.cache
def reference(architecture: Architecture) -> np.ndarray:
    return np.asarray(SentenceTransformer(str(tiny_model(architecture)), device="cpu").encode(TEXTS))


@pytest.mark.parametrize("architecture", MODELS)
def test_a_run_on_the_cpu_agrees_with_sentence_transformers(architecture: Architecture, tmp_path: Path) -> None:
    (tmp_path / "a_chunks.json").write_text(json.dumps(TEXTS))
    embed(
        tmp_path, tmp_path / "out", models=[str(tiny_model(architecture))], devices="cpu", exports=["npy"], quiet=True
    )
    [vectors] = [np.load(path) for path in (tmp_path / "out").rglob("embeddings.npy")]
    assert row_cosines(vectors, reference(architecture)).min() > 0.99999


@pytest.mark.parametrize("architecture", MODELS)
def test_padded_rows_agree_with_sentence_transformers(architecture: Architecture) -> None:
    encoder = load(architecture)
    texts = encoder.tokenize(TEXTS)
    vectors = encoder.forward(encoder.batch(texts, np.arange(len(TEXTS)))).numpy()
    assert row_cosines(vectors, reference(architecture)).min() > 0.99999


@pytest.mark.parametrize("architecture", ["bert", "xlm-roberta", "qwen2"])
def test_rows_with_the_padding_token_are_packed_where_it_is_a_token_like_others(architecture: Architecture) -> None:
    encoder = load(architecture)
    texts = encoder.tokenize(TEXTS)
    with_padding = np.array([0, 5, 12])
    without = np.array([1, 14, 15])
    assert encoder.can_pack_rows(texts, without, CpuDevice())
    # RoBERTa counts positions past the padding token, and the positions of packed rows are counted by us
    assert encoder.can_pack_rows(texts, with_padding, CpuDevice()) == (architecture != "xlm-roberta")
