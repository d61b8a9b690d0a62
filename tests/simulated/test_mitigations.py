"""Less memory, same vectors: the feed-forward in pieces, layers streamed, predictions of what a forward takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.tiny_models import ARCHITECTURES, Architecture, tiny_model
from ultimate_embedder.devices import MemoryLimits
from ultimate_embedder.devices.accelerator import AcceleratorDevice
from ultimate_embedder.devices.simulated import simulate
from ultimate_embedder.models import (
    Encoder,
    NotApplicableError,
    TokenBatch,
    chunked_feed_forward,
    load_encoder,
    repeated_layers,
    resolve_model,
    streamed_layers,
)

MiB = 1 << 20


def card() -> AcceleratorDevice:
    return AcceleratorDevice("simulated", 0, MemoryLimits())


def on_device(architecture: Architecture, dtype: str = "float32") -> tuple[Encoder, TokenBatch, np.ndarray]:
    encoder = load_encoder(resolve_model(str(tiny_model(architecture, hidden=128, layers=6))), dtype, "cpu")
    tokenized = encoder.tokenize([f"{number} some words to encode " * 6 for number in range(8)])
    batch = encoder.batch(tokenized, np.arange(8))
    reference = encoder.forward(batch).numpy()
    encoder.model.to("simulated:0")
    return encoder, batch, reference


def peak_of(encoder: Encoder, batch: TokenBatch, reference: np.ndarray) -> int:
    module = torch.get_device_module("simulated")
    module.empty_cache()
    module.reset_peak_memory_stats(0)
    vectors = encoder.forward(batch).cpu().numpy()
    assert (vectors * reference).sum(1).min() > 0.99999
    return int(module.max_memory_allocated(0))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_both_mitigations_save_memory_and_change_nothing(architecture: Architecture) -> None:
    controls = simulate([1024 * MiB])
    encoder, batch, reference = on_device(architecture)
    plain = peak_of(encoder, batch, reference)
    with chunked_feed_forward(encoder.model):
        chunked = peak_of(encoder, batch, reference)
    with streamed_layers(encoder.model, card()):
        streamed = peak_of(encoder, batch, reference)
    assert streamed < plain
    assert chunked < plain or (architecture == "mpnet" and chunked == plain)  # its attention takes more
    assert peak_of(encoder, batch, reference) == plain
    encoder.model.to("cpu")
    controls.clear_workspaces()
    assert controls.usage(0)["allocated"] == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_peak_is_known_before_the_forward(architecture: Architecture, dtype: str) -> None:
    simulate([1024 * MiB]).set_workspace(0, 0)  # it is allocated once, before the first batch is measured
    path = tiny_model(architecture, hidden=128, layers=6)
    encoder = load_encoder(resolve_model(str(path)), dtype, "cpu")
    module = torch.get_device_module("simulated")
    for rows, length in ((2, 40), (16, 40), (6, 200)):
        predicted = encoder.peak_bytes(rows, length)
        encoder.model.to("simulated:0")
        weights = module.memory_allocated(0)
        texts = ["a" * 500] + ["a" * (length - 10)] * (rows - 1)  # padded, so that there is a mask
        tokenized = encoder.tokenize([text[: length - 2] for text in texts])
        module.reset_peak_memory_stats(0)
        encoder.forward(encoder.batch(tokenized, np.arange(rows)))
        measured = module.max_memory_allocated(0) - weights
        encoder.model.to("cpu")
        assert predicted == pytest.approx(measured, rel=0.1)


def test_a_model_whose_weights_do_not_come_back_waits_on_the_host() -> None:
    controls = simulate([64 * MiB])
    encoder, batch, reference = on_device("qwen2")
    with streamed_layers(encoder.model, card()):
        controls.set_external(0, 64 * MiB)
        torch.get_device_module("simulated").set_per_process_memory_fraction(0.1, 0)
    assert encoder.device.type == "cpu"
    assert controls.usage(0)["allocated"] == 0
    controls.set_external(0, 0)
    torch.get_device_module("simulated").set_per_process_memory_fraction(1.0, 0)
    with streamed_layers(encoder.model, card()):
        assert peak_of(encoder, batch, reference) > 0
    controls.clear_workspaces()
    assert encoder.device.type == "cpu"
    assert controls.usage(0)["allocated"] == 0


def test_an_error_in_mid_forward_leaves_the_model_as_it_was() -> None:
    controls = simulate([256 * MiB])
    encoder, batch, reference = on_device("bert")
    with streamed_layers(encoder.model, card()):
        controls.fail_after(0, 30)
        with pytest.raises(torch.OutOfMemoryError):
            encoder.forward(batch)
    assert peak_of(encoder, batch, reference) > 0
    encoder.model.to("cpu")


def test_a_model_without_repeated_layers_is_refused_cleanly() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    with pytest.raises(NotApplicableError, match="no repeated layers"):
        repeated_layers(model)
