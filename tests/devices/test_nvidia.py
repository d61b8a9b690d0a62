"""What is set up when NVIDIA cards are opened; there need not be any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ultimate_embedder.devices import MemoryLimits, nvidia


@pytest.fixture
def settings_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back what opening cards changes for the process."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    for name in nvidia.ALLOCATOR_VARIABLES:
        monkeypatch.setenv(name, "")
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.usefixtures("settings_as_before")
def test_attention_of_cudnn_is_off_as_it_plans_anew_for_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "nvidia_is_available", lambda: True)
    torch.backends.cuda.enable_cudnn_sdp(True)
    assert len(nvidia.open_nvidia(MemoryLimits())) == torch.cuda.device_count()
    assert not torch.backends.cuda.cudnn_sdp_enabled()
