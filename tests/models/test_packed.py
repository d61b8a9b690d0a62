"""Batches without padding: the same vectors, for every architecture that goes through the registry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.tiny_models import ARCHITECTURES, Architecture, tiny_model
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.models import Encoder, TokenBatch, load_encoder, resolve_model, row_cosines
from ultimate_embedder.models.packed import lay_end_to_end

TEXTS = [f"{number} " + "some words " * (number * 7 % 23) for number in range(40)]
PACKING = [architecture for architecture in ARCHITECTURES if architecture != "mpnet"]


def load(path: Path | str) -> Encoder:
    return load_encoder(resolve_model(str(path)), "float32", "cpu")


def both_ways(encoder: Encoder) -> tuple[np.ndarray, np.ndarray]:
    texts = encoder.tokenize(TEXTS)
    rows = np.argsort(-texts.lengths, kind="stable")
    padded = encoder.forward(encoder.batch(texts, rows)).numpy()
    return padded, encoder.forward(encoder.batch(texts, rows, packed=True)).numpy()


@pytest.mark.parametrize("architecture", PACKING)
def test_packed_rows_get_the_vectors_of_padded_ones(architecture: Architecture) -> None:
    encoder = load(tiny_model(architecture))
    assert encoder.can_pack(CpuDevice())
    padded, packed = both_ways(encoder)
    assert row_cosines(packed, padded).min() > 0.99999
    assert np.abs(packed - padded).max() < 1e-5


def test_a_real_model_does_too(minilm: Path) -> None:
    encoder = load(minilm)
    assert encoder.can_pack(CpuDevice())
    padded, packed = both_ways(encoder)
    assert row_cosines(packed, padded).min() > 0.99999


def test_a_real_model_with_cls_pooling_does_too(granite: Path) -> None:
    encoder = load(granite)
    assert encoder.can_pack(CpuDevice())
    padded, packed = both_ways(encoder)
    assert row_cosines(packed, padded).min() > 0.99999


def test_a_model_that_does_not_go_through_the_registry_is_padded_as_always() -> None:
    encoder = load(tiny_model("mpnet"))
    assert not encoder.can_pack(CpuDevice())
    padded, packed = both_ways(encoder)  # asked for, and not done
    assert np.array_equal(padded, packed)


def test_rows_longer_than_a_layers_window_are_not_packed() -> None:
    encoder = load(tiny_model("modernbert"))
    texts = encoder.tokenize(["short", "a word " * 29, "a word " * 30, "a word " * 60])
    assert texts.lengths.tolist() == [7, 205, 212, 422]
    assert encoder.can_pack_rows(texts, np.array([1, 0]), CpuDevice())
    assert not encoder.can_pack_rows(texts, np.array([2, 0]), CpuDevice())
    assert not encoder.can_pack_rows(texts, np.array([3, 0]), CpuDevice())


def test_being_able_to_pack_changes_nothing_for_padded_batches() -> None:
    encoder = load(tiny_model("qwen2"))
    texts = encoder.tokenize(TEXTS)
    before = encoder.forward(encoder.batch(texts, np.arange(len(TEXTS)))).numpy()
    assert encoder.can_pack(CpuDevice())
    after = encoder.forward(encoder.batch(texts, np.arange(len(TEXTS)))).numpy()
    assert np.abs(after - before).max() < 1e-6


def test_a_trial_without_memory_proves_nothing_and_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load(tiny_model("bert"))
    forward, failing = Encoder.forward, [True, False]

    def fail_once(self: Encoder, batch: TokenBatch) -> torch.Tensor:
        if failing and failing.pop(0):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return forward(self, batch)

    monkeypatch.setattr(Encoder, "forward", fail_once)
    assert not encoder.can_pack(CpuDevice())
    assert encoder.can_pack(CpuDevice())


def test_rows_are_grouped_by_length_and_their_positions_begin_anew() -> None:
    rows = [np.array([1, 2, 3]), np.array([4, 5, 6]), np.array([7])]
    features, groups = lay_end_to_end(rows, first_position=2)
    assert groups == ((2, 3), (1, 1))
    assert features["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    assert features["position_ids"].tolist() == [[2, 3, 4, 2, 3, 4, 2]]
