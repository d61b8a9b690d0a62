"""Our vectors are those of sentence-transformers, whatever the architecture and the budget."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from tests.support.slow import slow
from tests.support.tiny_models import ARCHITECTURES, Architecture, tiny_model
from ultimate_embedder.batching import plan_batches
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.models import Encoder, check_dim, check_max_tokens, load_encoder, position_limit, resolve_model
from ultimate_embedder.vectors import shorten

TEXTS = [
    "A short one.",
    "x",
    "  leading, trailing and\n\nnewlines  \n",
    "emoji 🙂🧪, NUL \0 inside, Ünïcode, 表",
    "def add(a, b):\n    return a + b\n" * 4,
    "long " * 900,
    *(f"text number {number} " * (number % 17 + 1) for number in range(60)),
]


def encode(encoder: Encoder, texts: list[str], budget_tokens: int) -> np.ndarray:
    tokenized = encoder.tokenize(texts)
    vectors = np.empty((len(texts), encoder.dim), np.float32)
    for batch in plan_batches(tokenized.lengths, budget_tokens):
        vectors[batch.rows] = encoder.forward(encoder.batch(tokenized, batch.rows)).numpy()
    return vectors


def worst_cosine(ours: np.ndarray, reference: np.ndarray) -> float:
    ours, reference = ours.astype(np.float64), reference.astype(np.float64)
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(reference, axis=1)
    return float(((ours * reference).sum(1) / norms).min())


def load(path: Path | str, max_tokens: int | None = None) -> Encoder:
    return load_encoder(resolve_model(str(path)), "float32", "cpu", max_tokens)


@pytest.mark.parametrize(
    ("architecture", "prompts"),
    [("bert", False), *((each, True) for each in ARCHITECTURES), *(slow(each, False) for each in ARCHITECTURES[1:])],
)
def test_every_architecture_agrees_with_sentence_transformers(architecture: Architecture, prompts: bool) -> None:
    path = tiny_model(architecture, prompts=prompts)
    encoder = load(path)
    assert encoder.tokenizer_kind == "token-sorted"
    assert encoder.document_prompt == ("passage: " if prompts else "")
    reference = SentenceTransformer(str(path), device="cpu").encode_document(TEXTS)
    for budget_tokens in (1, 300, 5000):
        assert worst_cosine(encode(encoder, TEXTS, budget_tokens), reference) > 0.99999


@pytest.mark.parametrize("budget_tokens", [(256, 2048), slow((16384,))])
def test_minilm_agrees_with_sentence_transformers(minilm: Path, budget_tokens: tuple[int, ...]) -> None:
    reference, encoder = SentenceTransformer(str(minilm), device="cpu").encode(TEXTS), load("all-minilm-l6-v2")
    for each in budget_tokens:
        assert worst_cosine(encode(encoder, TEXTS, each), reference) > 0.99999


@pytest.mark.parametrize("budget_tokens", [slow(512), 2048])
def test_granite_agrees_with_sentence_transformers(granite: Path, docling_sample: Path, budget_tokens: int) -> None:
    texts = [chunk["text"] for file in sorted(docling_sample.rglob("*.json")) for chunk in json.loads(file.read_text())]
    texts = sorted(texts, key=len)[::4]  # of every length
    reference = SentenceTransformer(str(granite), device="cpu").encode(texts)
    assert worst_cosine(encode(load(granite), texts, budget_tokens), reference) > 0.99999


def test_queries_get_the_query_prompt() -> None:
    path = tiny_model("qwen3", prompts=True)
    reference = SentenceTransformer(str(path), device="cpu").encode_query("what is it?")
    assert worst_cosine(encode(load(path).for_queries(), ["what is it?"], 300), reference[None]) > 0.99999


def test_long_texts_are_cut_at_the_limit_and_marked() -> None:
    encoder = load(tiny_model("bert"), max_tokens=32)
    tokenized = encoder.tokenize(["a" * 30, "a" * 31, "a" * 5000])  # <s> and </s> take two places
    assert tokenized.lengths.tolist() == [32, 32, 32]
    assert tokenized.overlong.tolist() == [False, True, True]


@pytest.mark.parametrize("filler", ["word ", "表", "\n", " " * 50 + "a", "ü🙂x"])
def test_a_very_long_text_is_cut_where_the_whole_text_would_be(filler: str) -> None:
    encoder = load("all-minilm-l6-v2")
    text = "It begins. " + filler * (20_000 // len(filler))
    tokenized = encoder.tokenize(["short", text])
    (whole,), (over,) = encoder.tokenizer.token_ids([text])
    assert np.array_equal(tokenized.rows[1], whole)
    assert tokenized.overlong.tolist() == [False, over > 0]


def test_the_limit_is_the_models_own_unless_asked() -> None:
    assert load("all-minilm-l6-v2").max_tokens == 256
    assert load("all-minilm-l6-v2", max_tokens=512).max_tokens == 512
    with pytest.raises(UsageError, match="all-minilm-l6-v2 supports at most 512 tokens"):
        load("all-minilm-l6-v2", max_tokens=513)


def test_roberta_positions_begin_after_the_padding_id() -> None:
    assert load(tiny_model("xlm-roberta", max_tokens=100)).max_tokens == 100
    with pytest.raises(UsageError, match="supports at most 100 tokens"):
        load(tiny_model("xlm-roberta", max_tokens=100), max_tokens=101)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_files_of_a_model_say_as_many_positions_as_the_loaded_model(architecture: Architecture) -> None:
    model = resolve_model(str(tiny_model(architecture, max_tokens=100)))
    limit = position_limit(model)
    assert limit is not None
    check_max_tokens(model, limit)
    assert load(model.path, max_tokens=limit).max_tokens == limit
    message = f"--max-tokens {limit + 1}: .* supports at most {limit} tokens"
    with pytest.raises(UsageError, match=message):
        load(model.path, max_tokens=limit + 1)
    with pytest.raises(UsageError, match=message):
        check_max_tokens(model, limit + 1)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"config.json": "{"},
        {"config.json": "[]"},
        {"config.json": '{"max_position_embeddings": "many"}'},
        {"config.json": '{"max_position_embeddings": 512, "auto_map": {"AutoModel": "own.Model"}}'},
        {"config.json": '{"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": null}'},
        {"modules.json": "[7]"},
        {"modules.json": '[{"path": "0_Transformer"}]', "config.json": '{"max_position_embeddings": 512}'},
    ],
)
def test_files_that_do_not_say_how_many_positions_there_are_refuse_nothing(
    tmp_path: Path, files: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    model = dataclasses.replace(resolve_model(str(tiny_model("bert"))), path=tmp_path)
    assert position_limit(model) is None
    check_max_tokens(model, 10**6)


def test_positions_are_read_where_the_first_module_is(tmp_path: Path) -> None:
    (tmp_path / "0_Transformer").mkdir()
    (tmp_path / "modules.json").write_text('[{"type": "T", "path": "0_Transformer"}, {"type": "P", "path": "1"}]')
    (tmp_path / "0_Transformer" / "config.json").write_text('{"max_position_embeddings": 77}')
    assert position_limit(dataclasses.replace(resolve_model(str(tiny_model("bert"))), path=tmp_path)) == 77


def test_a_folder_may_be_cut_to_a_shorter_unit_vector() -> None:
    vectors = shorten(encode(load(tiny_model("bert")), TEXTS, 2048), 16)
    assert vectors.shape == (len(TEXTS), 16)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_model_that_was_not_trained_to_be_cut_refuses() -> None:
    message = r"--dim 100: not for all-minilm-l6-v2: it is not a Matryoshka model. Drop --dim"
    with pytest.raises(UsageError, match=message):
        check_dim(resolve_model("all-minilm-l6-v2"), 100)
    with pytest.raises(UsageError, match="vectors of all-minilm-l6-v2 have 384 dimensions"):
        check_dim(resolve_model("all-minilm-l6-v2"), 1000)


def test_a_model_with_its_own_tokenizing_still_agrees(tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tiny_model("bert") / "tokenizer.json"))
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=24)], device="cpu").save(str(tmp_path / "s"))
    encoder = load(tmp_path / "s")
    assert encoder.tokenizer_kind == "model"
    reference = SentenceTransformer(str(tmp_path / "s"), device="cpu").encode(TEXTS)
    assert worst_cosine(encode(encoder, TEXTS, 500), reference) > 0.99999


def test_broken_weights_are_named(tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "broken"
    shutil.copytree(tiny_model("bert"), folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelError, match="broken cannot be loaded from"):
        load(folder)
