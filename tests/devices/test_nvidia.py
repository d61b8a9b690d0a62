"""What is set up when NVIDIA cards are opened; there need not be any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ultimate_embedder.devices import MemoryLimits, nvidia


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torch's settings for cards; afterwards they are as before."""
    settings: Any = torch.backends.cuda
    before = settings.cudnn_sdp_enabled()
    for name in nvidia.ALLOCATOR_VARIABLES:
        monkeypatch.setenv(name, "")
    yield settings
    settings.enable_cudnn_sdp(before)


def test_attention_of_cudnn_is_off_as_it_plans_anew_for_every_shape(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "nvidia_is_available", lambda: True)
    settings.enable_cudnn_sdp(True)
    assert len(nvidia.open_nvidia(MemoryLimits())) == torch.cuda.device_count()
    assert not settings.cudnn_sdp_enabled()
