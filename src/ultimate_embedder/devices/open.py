"""Turn the `--devices` word into devices."""

from __future__ import annotations

from ultimate_embedder.devices.base import Device
from ultimate_embedder.devices.cpu import CpuDevice
from ultimate_embedder.errors import UsageError


def open_devices(word: str) -> list[Device]:
    """The devices that `word` names: auto, cpu, cuda or simulated:NxSIZE."""
    if word in ("auto", "cpu"):
        return [CpuDevice()]
    raise UsageError(f"--devices {word}: not built yet. Use --devices cpu.")
