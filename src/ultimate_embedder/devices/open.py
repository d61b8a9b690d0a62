"""Turn the `--devices` word into devices."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ultimate_embedder.config import parse_size, suggest
from ultimate_embedder.devices.accelerator import AcceleratorDevice, MemoryLimits
from ultimate_embedder.devices.base import Device
from ultimate_embedder.devices.cpu import CpuDevice
from ultimate_embedder.devices.nvidia import NVIDIA, nvidia_is_available, open_nvidia
from ultimate_embedder.devices.simulated import SIMULATED, simulate
from ultimate_embedder.errors import UsageError

DEVICE_WORDS = ("auto", "cpu", NVIDIA, f"{SIMULATED}:NxSIZE", f"{SIMULATED}:SIZE+SIZE")


def open_devices(word: str, limits: MemoryLimits, order: Sequence[str] = ()) -> list[Device]:
    """The devices that `word` names: cards if there are any (auto), the CPU, cards, or simulated ones.

    With `order` only those it names, in its order: `1,0`, or `kind:1,kind:0`; `cpu` alone means the CPU.
    """
    devices = _open(word, limits)
    if not order or not devices[0].has_ceiling:
        return devices
    by_number = {device.name.rpartition(":")[2]: device for device in devices}
    wanted = [name.rpartition(":")[2] for name in order]
    for name, number in zip(order, wanted, strict=True):
        if number not in (*by_number, "cpu"):
            raise UsageError(f"--device-order {name}: there are {', '.join(device.name for device in devices)}.")
    # the CPU after cards needs no place here: it is where a batch goes that no card has room for
    return [by_number[number] for number in dict.fromkeys(wanted) if number != "cpu"] or [CpuDevice()]


def _open(word: str, limits: MemoryLimits) -> list[Device]:
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
    controls = simulate(capacities)
    return [AcceleratorDevice(SIMULATED, index, limits, controls.clear_workspaces) for index in range(len(capacities))]
