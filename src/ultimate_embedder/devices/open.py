"""Turn the `--devices` word into devices."""

from __future__ import annotations

import re

from ultimate_embedder.config import parse_size, suggest
from ultimate_embedder.devices.accelerator import AcceleratorDevice, MemoryLimits
from ultimate_embedder.devices.base import Device
from ultimate_embedder.devices.cpu import CpuDevice
from ultimate_embedder.devices.nvidia import NVIDIA, nvidia_is_available, open_nvidia
from ultimate_embedder.devices.simulated import SIMULATED, simulate
from ultimate_embedder.errors import UsageError

DEVICE_WORDS = ("auto", "cpu", NVIDIA, f"{SIMULATED}:NxSIZE", f"{SIMULATED}:SIZE+SIZE")


def open_devices(word: str, limits: MemoryLimits) -> list[Device]:
    """The devices that `word` names: cards if there are any (auto), the CPU, cards, or simulated ones."""
    if word == "auto":
        return open_nvidia(limits) if nvidia_is_available() else [CpuDevice()]
    if word == "cpu":
        return [CpuDevice()]
    if word == NVIDIA:
        return open_nvidia(limits)
    if word.startswith(f"{SIMULATED}:"):
        return _open_simulated(word, limits)
    hint = suggest(word, ("auto", "cpu", NVIDIA, SIMULATED))
    raise UsageError(f"--devices {word}: not one of {', '.join(DEVICE_WORDS)}.{hint}")


def _open_simulated(word: str, limits: MemoryLimits) -> list[Device]:
    capacities: list[int] = []
    for part in word.partition(":")[2].split("+"):
        match = re.fullmatch(r"(?:(\d+)x)?(.+)", part.strip())
        if match is None:
            raise UsageError(f"--devices {word}: write a number and a size, as in simulated:2x15GiB.")
        capacities += [parse_size(match[2], f"--devices {word}")] * int(match[1] or 1)
    simulate(capacities)
    return [AcceleratorDevice(SIMULATED, index, limits) for index in range(len(capacities))]
