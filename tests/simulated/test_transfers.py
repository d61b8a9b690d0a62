"""Batches on their way to a device and back: every wait is there, as `mutations.py` shows by removing them."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from tests.support.tiny_models import tiny_model
from ultimate_embedder.devices import MemoryLimits
from ultimate_embedder.devices.accelerator import AcceleratorDevice
from ultimate_embedder.devices.base import Features
from ultimate_embedder.devices.simulated import simulate
from ultimate_embedder.models import Encoder, LayerStream, TokenBatch, load_encoder, repeated_layers, resolve_model

GiB = 1 << 30


@pytest.fixture
def device() -> AcceleratorDevice:
    simulate([GiB])
    return AcceleratorDevice("simulated", 0, MemoryLimits())


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder(resolve_model(str(tiny_model("bert", hidden=128, layers=6))), "float32", "cpu")


@pytest.fixture(scope="module")
def batch(encoder: Encoder) -> TokenBatch:
    tokenized = encoder.tokenize([f"{number} some words to encode" for number in range(4)])
    return encoder.batch(tokenized, np.arange(4))


def test_a_batch_that_was_sent_can_be_used_at_once(device: AcceleratorDevice) -> None:
    sent = device.send({"ids": torch.arange(4), "name": "as it is"})
    assert (sent["ids"] + 1).tolist() == [1, 2, 3, 4]
    assert sent["name"] == "as it is"


def test_batches_are_sent_while_those_before_them_are_used(device: AcceleratorDevice) -> None:
    fetches = []
    for number in range(4):
        sent = device.send({"ids": torch.full((8,), float(number))})
        fetches.append(device.fetch(sent["ids"] * 2, sent))
        del sent
    assert [fetch().tolist() for fetch in fetches] == [[2.0 * number] * 8 for number in range(4)]


def test_a_batch_is_sent_from_other_memory_than_one_that_is_still_on_its_way(device: AcceleratorDevice) -> None:
    first, second = (device.send({"ids": torch.full((8,), float(number))}) for number in (1, 2))
    assert [(sent["ids"] + 0).tolist() for sent in (first, second)] == [[1.0] * 8, [2.0] * 8]


def test_results_are_read_when_they_have_arrived(device: AcceleratorDevice) -> None:
    fetch = device.fetch(torch.ones(8, device="simulated:0") * 3)
    torch.zeros(8, device="simulated:0")  # may be given the memory of the results as soon as they have been copied
    assert fetch().tolist() == [3] * 8


def test_memory_of_a_batch_whose_forward_failed_is_used_again_only_afterwards(device: AcceleratorDevice) -> None:
    def fail(sent: Features) -> None:
        with device.in_use(sent):
            device.fetch(sent["ids"] * 2)
            raise RuntimeError("no room")

    for number in range(3):
        with pytest.raises(RuntimeError, match="no room"):
            fail(device.send({"ids": torch.full((8,), float(number))}))
        torch.zeros(8, device="simulated:0")
    device.release_workspaces()


def test_batches_share_pinned_memory_which_goes_when_the_device_is_idle(device: AcceleratorDevice) -> None:
    controls = simulate([GiB])
    before = controls.pinned()
    for number in range(20):
        sent = device.send({"ids": torch.full((8 + number % 3,), float(number))})
        assert device.fetch(sent["ids"] * 2, sent)()[0] == 2 * number
    assert controls.pinned()["operations"] - before["operations"] <= 8  # 40 copies
    unwanted = device.fetch(torch.ones(8, device="simulated:0"))
    device.release_workspaces()
    assert controls.pinned()["bytes"] == before["bytes"]
    assert unwanted().tolist() == [1] * 8


def test_the_time_between_two_marks_is_known_when_the_device_has_passed_both(device: AcceleratorDevice) -> None:
    begun = device.mark()
    torch.ones(8, device="simulated:0").sum()
    assert device.mark().seconds_since(begun) >= 0


def test_streamed_layers_compute_with_weights_that_have_arrived(
    device: AcceleratorDevice, encoder: Encoder, batch: TokenBatch
) -> None:
    reference = encoder.forward(batch).numpy()
    stream = LayerStream(encoder.model, device)
    for _ in range(2):
        with stream.running():
            vectors = encoder.forward(batch).cpu().numpy()
        assert (vectors * reference).sum(1).min() > 0.99999
    stream.close()


def test_memory_of_streamed_layers_is_given_back_after_the_last_copy_when_a_forward_fails(
    device: AcceleratorDevice, encoder: Encoder, batch: TokenBatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the second layer fails")

    # before the hook of streaming, which has asked for the weights of the layer after it by then
    hook = repeated_layers(encoder.model)[1].register_forward_pre_hook(fail)
    stream = LayerStream(encoder.model, device)
    try:
        with pytest.raises(RuntimeError, match="the second layer fails"), stream.running():
            encoder.forward(batch)
    finally:
        hook.remove()
        stream.close()
    torch.ones(8, device="simulated:0")


def test_streamed_weights_of_a_device_that_died_are_never_unpinned(
    device: AcceleratorDevice, batch: TokenBatch
) -> None:
    """Else torch would end the process."""
    controls = simulate([GiB])
    encoder = load_encoder(resolve_model(str(tiny_model("bert", hidden=128, layers=6))), "float32", "cpu")
    stream = LayerStream(encoder.model, device)
    controls.die_after(0, 120, "CUDA error: unspecified launch failure")
    with pytest.raises(RuntimeError, match="unspecified launch failure"), stream.running():
        encoder.forward(batch)
    pinned = controls.pinned()["bytes"]
    assert pinned > 0
    device.retire("it died")
    stream.abandon()
    del stream, encoder
    gc.collect()
    assert controls.pinned()["bytes"] == pinned
    controls.resize([GiB])
    gc.collect()
    assert controls.pinned()["bytes"] == 0
