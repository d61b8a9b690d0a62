"""What the host does for each batch: on a fast card a small model is limited by that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
