"""Our own layers for BERT and RoBERTa: tokens and vectors of sentence-transformers, compared once, then remembered."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import Architecture, tiny_model
from ultimate_embedder.config import cache_folder
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.errors import ModelError
from ultimate_embedder.models import Encoder, load_encoder, products_in_bf16, resolve_model, row_cosines
from ultimate_embedder.models.fused import Kernels, check, fastest, find_fastest_kernels, native, products, read_checked
from ultimate_embedder.models.fused.check import AWKWARD
from ultimate_embedder.models.fused.products import PRODUCTS
from ultimate_embedder.models.fused.settings import BLAS, NATIVE, ONEDNN, PRODUCT_KINDS, TORCH

TEXTS = [*AWKWARD, *(f"{number} " + "some words " * (number * 7 % 23) for number in range(20)), "too long " * 900]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def load(path: Path | str, *, fused: bool = True, max_tokens: int | None = None) -> Encoder:
    return load_encoder(resolve_model(str(path)), "float32", "cpu", max_tokens, may_fuse=fused)


def vectors(encoder: Encoder, *, packed: bool) -> np.ndarray:
    texts = encoder.tokenize(TEXTS)
    rows = np.argsort(-texts.lengths, kind="stable")
    packed = packed and encoder.can_pack_rows(texts, rows, CpuDevice())
    return encoder.forward(encoder.batch(texts, rows, packed=packed)).numpy()


def assert_same(fused: Encoder, reference: Encoder) -> None:
    ours, theirs = fused.tokenize(TEXTS), reference.tokenize(TEXTS)
    assert all(map(np.array_equal, ours.rows, theirs.rows))
    assert np.array_equal(ours.over, theirs.over)
    assert fused.tokenizer_fingerprint() == reference.tokenizer_fingerprint()
    assert (fused.dim, fused.max_tokens, fused.layers) == (reference.dim, reference.max_tokens, reference.layers)
    assert (fused.document_prompt, fused.unit_norm) == (reference.document_prompt, reference.unit_norm)
    expected = vectors(reference, packed=False)
    for packed in (False, True):
        found = vectors(fused, packed=packed)
        assert np.abs(found - expected).max() < 1e-5
        assert row_cosines(found, expected).min() > 0.999999


@pytest.mark.parametrize("architecture", ["bert", "xlm-roberta"])
def test_tokens_and_vectors_are_those_of_sentence_transformers(architecture: Architecture) -> None:
    folder = tiny_model(architecture, prompts=True)
    reference = load(folder, fused=False)
    compared, remembered = load(folder), load(folder)
    assert (reference.fused, compared.fused, remembered.fused) == (False, True, True)
    assert_same(compared, reference)
    assert_same(remembered, reference)
    assert remembered.document_prompt == "passage: "
    assert remembered.for_queries().tokenizer.prompt == "find: "


def test_those_of_a_real_model_too(minilm: Path) -> None:
    assert_same(load(minilm), load(minilm, fused=False))


def test_and_with_cls_pooling_and_weights_in_half_precision(granite: Path) -> None:
    assert_same(load(granite), load(granite, fused=False))


def test_of_the_last_layer_only_the_tokens_that_are_pooled_are_computed() -> None:
    by_first, by_mean = load(tiny_model("xlm-roberta")), load(tiny_model("bert"))

    tokens = {encoder.name: token_vectors(encoder) for encoder in (by_first, by_mean)}

    first, others = tokens[by_first.name][:, 0], tokens[by_first.name][:, 1:]
    assert (np.abs(first).sum(-1) > 0).all()
    assert not others.any()
    assert (np.abs(tokens[by_mean.name]).sum(-1) > 0).all()


def token_vectors(encoder: Encoder) -> np.ndarray:
    features = encoder.model[0](encoder.model.preprocess(["two words", "three more words"]))
    return np.asarray(features["token_embeddings"])


def test_a_token_limit_of_the_run_is_not_remembered() -> None:
    folder = tiny_model("bert")
    assert load(folder, max_tokens=16).max_tokens == 16
    assert load(folder).max_tokens == 512


def test_cut_texts_have_the_spans_of_transformers() -> None:
    folder = tiny_model("bert")
    text = "Größe, 表 and 🙂 words"
    ours, theirs = load(folder).tokenizer.spans(text), load(folder, fused=False).tokenizer.spans(text)
    assert np.array_equal(ours.starts, theirs.starts)
    assert np.array_equal(ours.ends, theirs.ends)


def test_other_architectures_stay_with_transformers_and_are_not_compared_again() -> None:
    for architecture, problem in {"mpnet": "it is a MPNetModel", "qwen2": "it is a Qwen2Model"}.items():
        folder = tiny_model(architecture)
        assert not load(folder).fused
        known = read_checked(resolve_model(str(folder)).digest)
        assert known is not None
        assert (known.settings, known.problem) == (None, problem)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hidden_act": "relu"}, "its config has a hidden_act of another kind"),
        ({"num_attention_heads": 2}, None),
    ],
)
def test_a_config_that_says_otherwise_is_heard(change: dict[str, object], problem: str | None, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "changed")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    encoder = load(folder)
    known = read_checked(resolve_model(str(folder)).digest)
    assert known is not None
    assert known.problem == problem
    assert encoder.fused == (problem is None)
    assert_same(encoder, load(folder, fused=False))


def test_weights_that_transformers_reads_in_another_way_are_left_to_it(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "renamed")
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in tensors.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    assert not load(folder).fused
    known = read_checked(resolve_model(str(folder)).digest)
    assert known is not None
    assert known.problem == "embeddings.LayerNorm.weight is not in its weights"


def test_a_record_that_is_damaged_or_of_other_versions_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    # a busy machine may find another kind faster the next time
    compute_with(Kernels(), monkeypatch)
    folder = tiny_model("bert")
    digest = resolve_model(str(folder)).digest
    load(folder)
    (record,) = (cache_folder() / "fused").iterdir()
    whole = record.read_text()
    for damaged in ("", whole[:-20], whole.replace('"heads": 4', '"heads": 2'), "[]"):
        record.write_text(damaged)
        assert read_checked(digest) is None, damaged
        assert load(folder).fused
        assert record.read_text() == whole
    for name, other in (("FUSED", "0"), ("processor_identity", lambda: "another")):
        with monkeypatch.context() as changed:
            changed.setattr(check, name, other)
            assert read_checked(digest) is None


def compute_with(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels.need_native and native.native() is None:
        pytest.skip("there are no kernels of our own for this machine")
    monkeypatch.setattr("ultimate_embedder.models.encoder.find_fastest_kernels", lambda: kernels)


@pytest.mark.parametrize("kernels", [Kernels(BLAS), Kernels(ONEDNN), Kernels(BLAS, NATIVE), Kernels(NATIVE, NATIVE)])
def test_kernels_of_every_kind_give_the_same_vectors(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_with(kernels, monkeypatch)
    for architecture in ("bert", "xlm-roberta"):
        folder = tiny_model(architecture)
        compared, remembered = load(folder), load(folder)
        known = read_checked(resolve_model(str(folder)).digest)
        assert known is not None
        assert known.kernels == kernels
        kinds = {type(encoder.transformer.layers[0].inner) for encoder in (compared, remembered)}
        assert kinds == {PRODUCTS[kernels.products]}
        assert_same(remembered, load(folder, fused=False))
        assert_same(remembered.replica(), load(folder, fused=False))


def test_bf16_products_of_a_fused_model_are_near_fp32() -> None:
    for architecture in ("bert", "xlm-roberta"):
        folder = tiny_model(architecture)
        expected, changed = vectors(load(folder), packed=True), products_in_bf16(load(folder))
        assert changed.fused
        assert changed.dtype == "bfloat16"
        assert 0.999 < row_cosines(vectors(changed, packed=True), expected).min() < 1 - 1e-7
        layer = changed.transformer.layers[0]
        assert (str(layer.inner.weight.dtype), str(layer.norm.weight.dtype)) == ("torch.bfloat16", "torch.float32")


def test_rows_are_computed_in_blocks_of_few_sizes() -> None:
    sizes: set[int] = set()

    def compute(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        sizes.add(len(rows))
        return torch.cat([rows + others, rows], 1)

    for count in (1, 31, 32, 33, 255, 256, 257, 511, 600, 1024):
        rows, others, target = torch.rand(count, 3), torch.rand(count, 3), torch.empty(count, 6)
        assert products.in_blocks(compute, products.FEW_SIZES, target, rows, others) is target
        assert torch.equal(target, torch.cat([rows + others, rows], 1))
    assert sizes <= set(range(32, 257, 32))
    assert tuple(PRODUCTS) == PRODUCT_KINDS


@pytest.mark.parametrize("step_rows", [1, products.FEW_SIZES])
def test_rows_that_are_computed_in_place_are_not_copied(step_rows: int) -> None:
    rows, others = torch.rand(300, 3), torch.rand(300, 3)
    expected = rows + others
    assert torch.equal(products.in_blocks(torch.Tensor.add_, step_rows, rows, rows, others), expected)
    assert torch.equal(rows, expected)


def test_the_fastest_kernels_are_taken_where_they_are_much_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        ({BLAS: 1.0, ONEDNN: 0.5, TORCH: 1.0}, Kernels(ONEDNN, TORCH)),
        ({BLAS: 1.0, ONEDNN: 0.97, TORCH: 1.0}, Kernels(BLAS, TORCH)),
        ({BLAS: 1.0, ONEDNN: 2.0, TORCH: 1.0}, Kernels(BLAS, TORCH)),
    ]
    if native.native() is not None:
        cases = [({**seconds, NATIVE: 3.0}, expected) for seconds, expected in cases]
        cases.append(({BLAS: 1.0, ONEDNN: 0.5, NATIVE: 0.4, TORCH: 1.0}, Kernels(NATIVE, NATIVE)))
        cases.append(({BLAS: 1.0, ONEDNN: 0.5, NATIVE: 0.6, TORCH: 1.0}, Kernels(ONEDNN, NATIVE)))
        cases.append(({BLAS: 1.0, ONEDNN: 0.5, NATIVE: 0.51, TORCH: 0.5}, Kernels(NATIVE, NATIVE)))
    for seconds, expected in cases:
        monkeypatch.setattr(fastest, "_seconds", lambda name, work, seconds=seconds: seconds[name])
        assert find_fastest_kernels() == expected


def test_without_onednn_and_a_compiler_products_are_those_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise RuntimeError("there is no such operator")

    monkeypatch.setattr(products.PackedProduct, "__init__", missing)
    monkeypatch.setenv("ULTIMATE_EMBEDDER_COMPILE", "off")
    assert find_fastest_kernels() == Kernels(BLAS, TORCH)


def test_without_a_place_for_records_it_is_compared_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load(tiny_model("bert")).fused
    assert load(tiny_model("bert")).fused


def test_a_tokenizer_that_was_damaged_since_is_named(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "model")
    model = resolve_model(str(folder))
    load(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        load_encoder(model, "float32", "cpu", may_fuse=True)


def test_a_remembered_model_needs_neither_sentence_transformers_nor_transformers() -> None:
    folder = tiny_model("bert")
    load(folder)
    script = (
        "import sys\n"
        "import numpy as np\n"
        "from ultimate_embedder.models import load_encoder, resolve_model\n"
        "encoder = load_encoder(resolve_model(sys.argv[1]), 'float32', 'cpu', may_fuse=True)\n"
        "texts = encoder.tokenize(['a text'])\n"
        "assert encoder.forward(encoder.batch(texts, np.array([0]))).shape == (1, 64)\n"
        "print(sorted({'transformers', 'sentence_transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("[]\n", "")
