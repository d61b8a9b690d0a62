"""What the host does for each batch: on a fast card a small model is limited by that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks.host_calls import MOST_KERNELS_PER_LAYER

from tests.support.tiny_models import ARCHITECTURES, tiny_model
from ultimate_embedder.devices import MemoryLimits, open_devices
from ultimate_embedder.devices.simulated import simulate
from ultimate_embedder.models import load_encoder, resolve_model


# MPNet has its own attention, outside transformers' registry: its mask is looked at, once
@pytest.mark.parametrize("architecture", [each for each in ARCHITECTURES if each != "mpnet"])
@pytest.mark.parametrize("texts", [["one", "a longer text"], ["same", "long"]], ids=["padded", "of one length"])
def test_a_forward_never_waits_for_the_device(architecture: Any, texts: list[str]) -> None:
    controls = simulate([1 << 30])
    (device,) = open_devices("simulated:1GiB", MemoryLimits())
    encoder = load_encoder(resolve_model(str(tiny_model(architecture))), "float32", "cpu")
    encoder.model.to(device.torch_device)
    tokenized = encoder.tokenize(texts)
    batch = encoder.batch(tokenized, np.argsort(-tokenized.lengths))
    before = controls.scalar_reads()
    encoder.forward(batch)
    assert controls.scalar_reads() == before


def test_padded_rows_end_where_the_attention_kernel_needs_no_copy_of_the_mask() -> None:
    controls = simulate([1 << 30])
    (device,) = open_devices("simulated:1GiB", MemoryLimits())
    encoder = load_encoder(resolve_model(str(tiny_model("bert"))), "float32", "cpu")
    encoder.model.to(device.torch_device)

    def kernels(*lengths: int) -> tuple[int, int]:
        tokenized = encoder.tokenize(["x" * (length - 2) for length in lengths])  # <s> and </s> are tokens too
        batch = encoder.batch(tokenized, np.arange(len(lengths)))
        before = controls.kernel_calls()
        encoder.forward(batch)
        return batch.padded_tokens // len(lengths), controls.kernel_calls() - before

    aligned, aligned_kernels = kernels(16, 9)
    rounded, rounded_kernels = kernels(13, 9)
    assert (aligned, rounded) == (16, 16)
    assert rounded_kernels == aligned_kernels
    assert kernels(13, 13)[0] == 13  # rows of one length have no mask


def test_a_batch_launches_few_kernels_and_fewest_when_it_is_padded() -> None:
    controls = simulate([1 << 30])
    (device,) = open_devices("simulated:1GiB", MemoryLimits())
    layers = 6
    encoder = load_encoder(resolve_model(str(tiny_model("bert", layers=layers))), "float32", "cpu")
    encoder.model.to(device.torch_device)
    tokenized = encoder.tokenize(["x" * length for length in range(30, 10, -1)])
    assert encoder.can_pack(device)

    def kernels(packed: bool) -> int:
        before = controls.kernel_calls()
        encoder.forward(encoder.batch(tokenized, np.arange(20), packed))
        return controls.kernel_calls() - before

    padded = kernels(packed=False)
    assert padded < MOST_KERNELS_PER_LAYER * layers
    assert kernels(packed=True) > 2 * padded  # which is why rows are padded on cards
