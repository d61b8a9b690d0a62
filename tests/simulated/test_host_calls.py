"""What the host does for each batch: on a fast card a small model is limited by that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from benchmarks.host_calls import MOST_KERNELS_PER_LAYER

from tests.support.tiny_models import ARCHITECTURES, tiny_model
from ultimate_embedder.devices import Device, MemoryLimits, open_devices
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.models import Encoder, TokenBatch, load_encoder, resolve_model


@dataclass(frozen=True)
class Bench:
    """A model on a card, and what the host does there."""

    controls: SimulatedControls
    device: Device
    encoder: Encoder

    def kernels(self, batch: TokenBatch) -> int:
        """Kernels of one forward."""
        before = self.controls.kernel_calls()
        self.encoder.forward(batch)
        return self.controls.kernel_calls() - before


@contextlib.contextmanager
def bench_of(architecture: Any, **shape: int) -> Iterator[Bench]:
    controls = simulate([1 << 30])
    (device,) = open_devices("simulated:1GiB", MemoryLimits())
    encoder = load_encoder(resolve_model(str(tiny_model(architecture, **shape))), "float32", "cpu")
    encoder.model.to(device.torch_device)
    yield Bench(controls, device, encoder)
    encoder.model.to("cpu")
    controls.clear_workspaces()


# MPNet has its own attention, outside transformers' registry: its mask is looked at, once
@pytest.mark.parametrize("architecture", [each for each in ARCHITECTURES if each != "mpnet"])
@pytest.mark.parametrize("texts", [["one", "a longer text"], ["same", "long"]], ids=["padded", "of one length"])
def test_a_forward_never_waits_for_the_device(architecture: Any, texts: list[str]) -> None:
    with bench_of(architecture) as bench:
        tokenized = bench.encoder.tokenize(texts)
        batch = bench.encoder.batch(tokenized, np.argsort(-tokenized.lengths))
        before = bench.controls.scalar_reads()
        bench.encoder.forward(batch)
        assert bench.controls.scalar_reads() == before


def test_padded_rows_end_where_the_attention_kernel_needs_no_copy_of_the_mask() -> None:
    def batch_of(bench: Bench, *lengths: int) -> TokenBatch:
        tokenized = bench.encoder.tokenize(["x" * (length - 2) for length in lengths])  # <s> and </s> are tokens too
        return bench.encoder.batch(tokenized, np.arange(len(lengths)))

    with bench_of("bert") as bench:
        aligned, rounded, uniform = (batch_of(bench, *lengths) for lengths in ((264, 90), (259, 90), (259, 259)))
        assert [batch.padded_tokens for batch in (aligned, rounded, uniform)] == [528, 528, 518]  # one length: no mask
        assert batch_of(bench, 13, 9).padded_tokens == 26  # so short a mask is quickly copied
        assert bench.kernels(rounded) == bench.kernels(aligned)


def test_a_batch_launches_few_kernels_and_fewest_when_it_is_padded() -> None:
    layers = 6
    with bench_of("bert", layers=layers) as bench:
        tokenized = bench.encoder.tokenize(["x" * length for length in range(30, 10, -1)])
        assert bench.encoder.can_pack(bench.device)
        padded, packed = (
            bench.kernels(bench.encoder.batch(tokenized, np.arange(20), packed=packed)) for packed in (False, True)
        )
    assert padded < MOST_KERNELS_PER_LAYER * layers
    assert packed > 2 * padded  # which is why rows are padded on cards
