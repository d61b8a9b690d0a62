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
    LayerStream,
    NotApplicableError,
    TokenBatch,
    chunked_feed_forward,
    load_encoder,
    repeated_layers,
    resolve_model,
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
    stream = LayerStream(encoder.model, card())
    with stream.running():
        streamed = peak_of(encoder, batch, reference)
    stream.close()
    assert encoder.device.type == "cpu"
    controls.clear_workspaces()
    assert controls.usage(0)["allocated"] == 0
    assert streamed < plain
    assert chunked < plain or (architecture == "mpnet" and chunked == plain)  # its attention takes more
    encoder.model.to("simulated:0")
    assert peak_of(encoder, batch, reference) == plain
    encoder.model.to("cpu")
    controls.clear_workspaces()
    assert controls.usage(0)["allocated"] == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("capability", [(7, 5), (8, 0)])
def test_the_peak_is_known_before_the_forward(
    architecture: Architecture, dtype: str, capability: tuple[int, int]
) -> None:
    controls = simulate([1024 * MiB])
    controls.set_capability(0, capability)
    controls.set_workspace(0, 0)  # it is allocated once, before the first batch is measured
    path = tiny_model(architecture, hidden=128)
    encoder = load_encoder(resolve_model(str(path)), dtype, "cpu")
    module = torch.get_device_module("simulated")
    for rows, length in ((2, 41), (16, 41), (6, 203)):
        predicted = encoder.peak_bytes(rows, length, capability)
        encoder.model.to("simulated:0")
        weights = module.memory_allocated(0)
        texts = ["a" * 500] + ["a" * (length - 10)] * (rows - 1)  # padded, so that there is a mask
        tokenized = encoder.tokenize([text[: length - 2] for text in texts])
        module.reset_peak_memory_stats(0)
        encoder.forward(encoder.batch(tokenized, np.arange(rows)))
        measured = module.max_memory_allocated(0) - weights
        encoder.model.to("cpu")
        assert predicted == pytest.approx(measured, rel=0.1)


def test_a_stream_pins_once_keeps_its_weights_on_the_host_and_leaves_nothing() -> None:
    controls = simulate([64 * MiB])
    encoder, batch, reference = on_device("qwen2")
    before, hooks = controls.pinned(), encoder.count_hooks()
    stream = LayerStream(encoder.model, card())
    for _ in range(3):
        with stream.running():
            assert peak_of(encoder, batch, reference) > 0
    pinned = controls.pinned()
    tensors = sum(len(layer.state_dict()) for layer in repeated_layers(encoder.model))
    assert pinned["operations"] - before["operations"] == tensors
    stream.leave()
    controls.clear_workspaces()
    assert controls.usage(0)["allocated"] == 0
    encoder.model.to("simulated:0")
    sent = controls.traffic()["device_to_host"]
    stream.leave()  # the layers are on the host already
    assert controls.traffic()["device_to_host"] - sent < encoder.weight_bytes / 10
    with stream.running():
        assert peak_of(encoder, batch, reference) > 0
    assert controls.pinned() == pinned
    stream.close()
    controls.clear_workspaces()
    assert controls.usage(0)["allocated"] == 0
    assert controls.pinned()["bytes"] == before["bytes"]
    assert encoder.count_hooks() == hooks
    assert encoder.tensors_off_host() == []


def test_a_stream_pins_no_more_than_it_may() -> None:
    controls = simulate([64 * MiB])
    encoder, batch, reference = on_device("qwen2")
    before = controls.pinned()["bytes"]
    stream = LayerStream(encoder.model, card(), pinned_bytes=2 * MiB)
    with stream.running():
        assert peak_of(encoder, batch, reference) > 0
    assert 0 < controls.pinned()["bytes"] - before <= 2 * MiB
    assert sum(tensor.is_pinned() for tensor in encoder.model.parameters()) > 0
    stream.close()
    assert controls.pinned()["bytes"] == before


def test_a_model_that_is_wholly_on_the_device_stays_there_when_its_stream_is_closed() -> None:
    controls = simulate([64 * MiB])
    encoder, batch, reference = on_device("bert")
    before = controls.pinned()["bytes"]
    stream = LayerStream(encoder.model, card())
    with stream.running():
        assert peak_of(encoder, batch, reference) > 0
    stream.leave()
    encoder.model.to("simulated:0")
    stream.close()
    assert {place for _, place in encoder.tensors_off_host()} == {"simulated:0"}
    assert controls.pinned()["bytes"] == before
    encoder.model.to("cpu")


def test_an_error_in_mid_forward_leaves_the_stream_usable() -> None:
    controls = simulate([256 * MiB])
    encoder, batch, reference = on_device("bert")
    stream = LayerStream(encoder.model, card())
    with stream.running():
        pass  # its buffers are there
    controls.fail_after(0, 30)
    with pytest.raises(torch.OutOfMemoryError), stream.running():
        encoder.forward(batch)
    with stream.running():
        assert peak_of(encoder, batch, reference) > 0
    stream.close()


def test_a_stream_that_does_not_fit_leaves_the_model_on_the_host() -> None:
    controls = simulate([256 * MiB])
    encoder, batch, reference = on_device("bert")
    stream = LayerStream(encoder.model, card())
    controls.fail_after(0, 5)
    with pytest.raises(torch.OutOfMemoryError), stream.running():
        pytest.fail("it has no room")
    assert controls.usage(0)["allocated"] == 0
    assert encoder.tensors_off_host() == []
    with stream.running():
        assert peak_of(encoder, batch, reference) > 0
    stream.close()


def test_a_model_without_repeated_layers_is_refused_cleanly() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    with pytest.raises(NotApplicableError, match="no repeated layers"):
        repeated_layers(model)
