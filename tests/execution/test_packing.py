"""Packing is chosen where it is faster, by trying."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.tiny_models import tiny_model
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.execution.packing import PACKING_TRIALS, Packing
from ultimate_embedder.models import Encoder, load_encoder, resolve_model

UNEVEN, EVEN = np.array([9, 5, 5]), np.array([5, 5, 5])


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder(resolve_model(str(tiny_model("bert"))), "float32", "cpu")


@pytest.mark.parametrize("packed_is_faster", [True, False])
def test_the_faster_way_is_kept_after_a_few_batches(encoder: Encoder, packed_is_faster: bool) -> None:
    packing, tried = Packing(), []
    for _ in range(2 * PACKING_TRIALS):
        tried.append(packing.choose(encoder, CpuDevice(), UNEVEN))
        packing.note(tried[-1], UNEVEN, seconds=1.0 if tried[-1] == packed_is_faster else 2.0)
    assert sorted(tried) == [False] * PACKING_TRIALS + [True] * PACKING_TRIALS
    assert packing.choose(encoder, CpuDevice(), UNEVEN) is packed_is_faster


def test_a_batch_without_padding_is_never_packed_and_proves_nothing(encoder: Encoder) -> None:
    packing = Packing()
    for _ in range(10):
        assert not packing.choose(encoder, CpuDevice(), EVEN)
        packing.note(False, EVEN, seconds=0.001)
    assert packing.choose(encoder, CpuDevice(), UNEVEN)


def test_a_model_that_cannot_is_never_packed() -> None:
    plain = load_encoder(resolve_model(str(tiny_model("mpnet"))), "float32", "cpu")
    assert not Packing().choose(plain, CpuDevice(), UNEVEN)
