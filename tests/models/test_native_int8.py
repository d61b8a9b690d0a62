"""int8 by our own kernels: what they compute, which models they are for, and where there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from tests.conftest import WriteChunks
from tests.support.tiny_models import Architecture, tiny_model
from ultimate_embedder import embed
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.models import (
    Encoder,
    load_encoder,
    load_native_int8,
    resolve_model,
    row_cosines,
    suits_native_int8,
)
from ultimate_embedder.models.canary import CANARY
from ultimate_embedder.models.fused import Checked, remember
from ultimate_embedder.models.fused.native import Native, native
from ultimate_embedder.models.fused.products import Int8Product, Product
from ultimate_embedder.models.int8 import GROUPS, NATIVE, in_groups, in_words
from ultimate_embedder.types import ResolvedModel

TEXTS = [f"{number} " + "some words " * (number * 7 % 23) for number in range(20)]
only_with_vnni = pytest.mark.usefixtures("kernels")


@pytest.fixture
def kernels() -> Native:
    found = native()
    if found is None or not found.has_int8:
        pytest.skip("no AVX-512 VNNI, or no compiler")
    return found


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def rounded_weights(values: torch.Tensor, group: int) -> torch.Tensor:
    """Rows in steps of 1/127 of the largest number of each group."""
    parts = values.double().view(len(values), -1, group)
    steps = parts.abs().amax(2, keepdim=True) / 127
    return ((parts / steps).round() * steps).view(values.shape)


def rounded_inputs(values: torch.Tensor, group: int) -> torch.Tensor:
    """Rows in 255 steps between the least and the largest number of each group."""
    parts = values.double().view(len(values), -1, group)
    least = parts.amin(2, keepdim=True)
    steps = (parts.amax(2, keepdim=True) - least) / 255
    return torch.where(steps > 0, ((parts - least) / steps).round() * steps + least, parts).view(values.shape)


@pytest.mark.parametrize(("outer", "inner", "group"), [(32, 32, 32), (96, 384, 128), (64, 1536, 64), (1152, 96, 32)])
def test_products_are_those_of_rounded_numbers(kernels: Native, outer: int, inner: int, group: int) -> None:
    weight, bias = numbers(outer, inner), numbers(outer)
    product = Int8Product(Product(weight, bias), group, kernels)
    for rows in (1, 2, 11, 12, 13, 263, 265, 530):
        inputs, residual = numbers(rows, inner) * 3, numbers(rows, outer)
        inputs[0, :group] = 7  # no step between its numbers
        inputs[1:3, :group] += 20  # none below 0
        expected = rounded_inputs(inputs, group) @ rounded_weights(weight, group).t() + bias
        most = 1e-5 * expected.abs().max()  # a number halfway between two levels may go to either
        off = (product(inputs) - expected).abs()
        assert off.median() <= most
        assert off.max() <= most + 3 * weight.abs().max() * (inputs.max() - inputs.min()) / 255
        assert (product.gelu(inputs) - F.gelu(product(inputs))).abs().max() < 1e-5
        assert (product.added_to(residual.clone(), inputs) - product(inputs) - residual).abs().max() < 2e-4  # of 400
        assert torch.equal(product.in_panels(inputs).transpose(0, 1).flatten(1), product(inputs))
        assert torch.equal(product(inputs[-1:]), product(inputs)[-1:])


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_seen_in_the_result(kernels: Native, wrong: float) -> None:
    product = Int8Product(Product(numbers(32, 64), numbers(32)), 32, kernels)
    inputs = numbers(3, 64)
    inputs[1, 40] = wrong
    found = product(inputs)
    assert not torch.isfinite(found[1]).any()
    assert torch.isfinite(found[[0, 2]]).all()


def vectors(encoder: Encoder, texts: Any) -> np.ndarray:
    tokens = encoder.tokenize(texts)
    return np.asarray(encoder.forward(encoder.batch(tokens, np.arange(len(texts)))).numpy())


@only_with_vnni
def test_vectors_are_near_to_those_in_fp32_and_smaller_groups_are_nearer(minilm: Path) -> None:
    model = resolve_model(str(minilm))
    expected = vectors(load_encoder(model, "float32", "cpu"), CANARY)
    cosines = []
    for group in GROUPS:
        encoder = load_native_int8(model, in_groups(group, NATIVE))
        assert (encoder.dtype, encoder.fused) == ("int8", True)
        cosines.append(row_cosines(vectors(encoder, CANARY), expected).mean())
    assert cosines[0] > 0.998  # of a few texts, some of which are not words
    assert cosines == sorted(cosines)


@only_with_vnni
def test_a_vector_does_not_depend_on_the_texts_beside_it(minilm: Path) -> None:
    encoder = load_native_int8(resolve_model(str(minilm)), in_groups(128, NATIVE))
    together = vectors(encoder, ["alone"] * 3)
    assert np.array_equal(together[0], together[2])
    text = "a text that stands alone, or beside others of its length"
    alone = vectors(encoder, [text])
    others = [text.replace("text", word) for word in ("word", "book", "page")]
    assert np.array_equal(vectors(encoder, [*others, text])[3:], alone)


@pytest.mark.parametrize(("kind", "suits"), [("bert", True), ("xlm-roberta", True), ("qwen3", False)])
def test_models_of_berts_shape_suit_our_own_kernels(kind: Architecture, suits: bool) -> None:
    assert suits_native_int8(resolve_model(str(tiny_model(kind)))) is suits


@pytest.mark.parametrize("unlike", [{"hidden_act": "relu"}, {"hidden_size": 40}, {"intermediate_size": "64"}])
def test_models_of_other_shapes_do_not(tmp_path: Path, unlike: dict[str, Any]) -> None:
    config = {"model_type": "bert", "hidden_act": "gelu", "hidden_size": 64, "intermediate_size": 64, **unlike}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not suits_native_int8(ResolvedModel("m", None, tmp_path, "folder", "r", "d", 0))


@only_with_vnni
def test_a_run_says_how_int8_was_computed_and_the_next_one_has_nothing_to_do(
    write_chunks: WriteChunks, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"models": [str(tiny_model("bert"))], "devices": "cpu", "exports": "npy", "quiet": True}
    chunks = write_chunks(TEXTS)
    first = embed(chunks, tmp_path / "out", precision="int8", **options).collections[0].passes[0]
    assert (first.quantization, first.dtype, first.encoded_texts) == ("native-asymmetric-128", "int8", len(TEXTS))
    assert in_words(first.quantization) == "native kernels, groups of 128"
    assert first.agreement is not None
    assert 0.99 < first.agreement.mean_cosine < 1
    again = embed(chunks, tmp_path / "out", precision="int8", **options).collections[0].passes[0]
    assert (again.encoded_texts, again.fingerprint) == (0, first.fingerprint)


@only_with_vnni
def test_the_smallest_loss_is_found_among_groups(write_chunks: WriteChunks, tmp_path: Path) -> None:
    options: dict[str, Any] = {"models": [str(tiny_model("bert"))], "devices": "cpu", "exports": "npy", "quiet": True}
    summary = embed(write_chunks(TEXTS), tmp_path / "out", precision="int8", min_cosine=0.9, **options)
    choice = summary.collections[0].passes[0].choice
    assert choice is not None
    assert [way.quantization for way in choice.measured] == [f"native-asymmetric-{size}" for size in (128, 64, 32)]


@only_with_vnni
def test_a_model_that_does_not_suit_is_openvinos_beside_one_that_does(
    write_chunks: WriteChunks, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    models = [str(tiny_model("bert")), str(tiny_model("mpnet"))]
    summary = embed(
        write_chunks(TEXTS[:3]), tmp_path / "out", models=models, devices="cpu", precision="int8", quiet=True
    )
    ways = [single.quantization for single in summary.collections[0].passes]
    assert ways == ["native-asymmetric-128", "openvino-balanced-128"]


def test_without_kernels_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULTIMATE_EMBEDDER_COMPILE", "off")
    with pytest.raises(UsageError, match="Add --backend openvino, or drop --precision"):
        load_native_int8(resolve_model(str(tiny_model("bert"))), in_groups(128, NATIVE))


@only_with_vnni
def test_a_model_whose_layers_are_not_ours_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = resolve_model(str(tiny_model("bert")))
    remember(model.digest, Checked(None, "its modules are many"))
    with pytest.raises(ModelError, match=r"by kernels of our own .its modules are many.. Add --backend openvino"):
        load_native_int8(model, in_groups(128, NATIVE))


@only_with_vnni
def test_wrong_numbers_are_found_when_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Native.multiply_int8
    monkeypatch.setattr(Native, "multiply_int8", lambda *values, **options: -right(*values, **options))
    with pytest.raises(ModelError, match="its vectors in int8 are wrong here"):
        load_native_int8(resolve_model(str(tiny_model("bert"))), in_groups(128, NATIVE))
