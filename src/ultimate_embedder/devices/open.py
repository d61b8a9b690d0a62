"""Turn the `--devices` word into devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ultimate_embedder.config import parse_size, suggest
from ultimate_embedder.devices.accelerator import AcceleratorDevice, Vendor
from ultimate_embedder.devices.base import Device
from ultimate_embedder.devices.cpu import CpuDevice
from ultimate_embedder.devices.driver_errors import NO_KERNELS, in_one_line, names_any
from ultimate_embedder.devices.limits import MemoryLimits
from ultimate_embedder.devices.nvidia import NVIDIA, count_nvidia, nvidia_vendor, prepare_nvidia
from ultimate_embedder.devices.simulated import SIMULATED, simulate
from ultimate_embedder.errors import UsageError
from ultimate_embedder.machine import processor_name
from ultimate_embedder.stop import run_in_time

DEVICE_WORDS = ("auto", "cpu", NVIDIA, f"{SIMULATED}:NxSIZE", f"{SIMULATED}:SIZE+SIZE")


def _refuse(message: str) -> None:
    raise UsageError(message)


def open_devices(
    word: str,
    limits: MemoryLimits,
    order: Sequence[str] = (),
    report: Callable[[str], None] = _refuse,
    timeout_s: float | None = None,
    *,
    must_exist: bool = True,
) -> list[Device]:
    """The devices that `word` names: cards if there are any (auto), the CPU, cards, or simulated ones.

    With `order` only those it names, in its order: `1,0`, or `kind:1,kind:0`; `cpu` alone means the CPU. A card that
    cannot compute, or has not within `timeout_s`, is left out, and `report` is told why; without it that is an error.
    An unknown name in `order` is an error too, unless `must_exist` is False: then all are taken, in their own order.
    """
    devices = _open(word, _Opening(limits, report, timeout_s))
    if not order or not devices[0].has_ceiling:
        return devices
    by_number = {device.name.rpartition(":")[2]: device for device in devices}
    wanted = [name.rpartition(":")[2] for name in order]
    for name, number in zip(order, wanted, strict=True):
        if number not in (*by_number, "cpu"):
            if not must_exist:
                return devices
            raise UsageError(f"--device-order {name}: there are {', '.join(device.name for device in devices)}.")
    # the CPU after cards needs no place here: it is where a batch goes that no card has room for
    return [by_number[number] for number in dict.fromkeys(wanted) if number != "cpu"] or [CpuDevice()]


@dataclass(frozen=True)
class _Opening:
    """How cards are opened."""

    limits: MemoryLimits
    report: Callable[[str], None]
    timeout_s: float | None


def _open(word: str, how: _Opening) -> list[Device]:
    if word == "auto":
        return _open_nvidia(how) or [CpuDevice()]
    if word == "cpu":
        return [CpuDevice()]
    if word == NVIDIA:
        if not count_nvidia():
            raise UsageError(f"--devices {word}: torch sees no card here. Use --devices cpu, or simulated:2x15GiB.")
        return _open_nvidia(how) or _no_card_computes(word)
    if word.startswith(f"{SIMULATED}:"):
        return _open_simulated(word, how) or _no_card_computes(word)
    name, colon, number = word.partition(":")
    if name == NVIDIA and colon:
        raise UsageError(
            f"--devices {word}: write --devices {NVIDIA} --device-order {number or 0} for one card of several."
        )
    hint = suggest(word, ("auto", "cpu", NVIDIA, SIMULATED))
    raise UsageError(f"--devices {word}: not one of {', '.join(DEVICE_WORDS)}.{hint}")


def _open_nvidia(how: _Opening) -> list[Device]:
    count = count_nvidia()
    if not count:
        return []
    prepare_nvidia()
    return _open_cards(NVIDIA, count, nvidia_vendor(), how)


def _open_simulated(word: str, how: _Opening) -> list[Device]:
    capacities: list[int] = []
    for part in word.partition(":")[2].split("+"):
        match = re.fullmatch(r"(?:(\d+)x)?(.+)", part.strip())
        if match is None:
            raise UsageError(f"--devices {word}: write a number and a size, as in simulated:2x15GiB.")
        capacities += [parse_size(match[2], f"--devices {word}")] * int(match[1] or 1)
    controls = simulate(capacities)
    vendor = Vendor(
        context_bytes=lambda index, _: controls.context_bytes(index),
        clear_workspaces=controls.clear_workspaces,
        hardware=lambda index: f"simulated on {processor_name()}",  # as fast as the host
    )
    return _open_cards(SIMULATED, controls.device_count(), vendor, how)


def _open_cards(kind: str, count: int, vendor: Vendor, how: _Opening) -> list[Device]:
    """Those cards that can compute: some that torch sees have no kernels in it, or are broken."""
    devices: list[Device] = []
    for index in range(count):
        try:
            devices.append(_open_card(kind, index, vendor, how))
        except RuntimeError as error:
            how.report(f"{kind}:{index} is not used: {_why_it_cannot_compute(error, vendor)}")
    return devices


def _open_card(kind: str, index: int, vendor: Vendor, how: _Opening) -> Device:
    device = AcceleratorDevice(kind, index, how.limits, vendor)
    try:
        run_in_time(device.try_kernel, how.timeout_s)
    except TimeoutError as error:
        device.retire(str(error), hangs=True)
        raise RuntimeError(str(error)) from error
    except RuntimeError as error:
        if not device.is_out_of_memory(error):  # a full card may have room later
            raise
    device.release_workspaces()
    device.release_cache()
    return device


def _why_it_cannot_compute(error: RuntimeError, vendor: Vendor) -> str:
    if names_any(str(error), NO_KERNELS):
        return (
            f"the installed torch has no kernels for it ({vendor.kernels()}). "
            "Install a torch that has, or use another card (on Kaggle: GPU T4 x2)."
        )
    return f"it cannot compute ({in_one_line(error)})"


def _no_card_computes(word: str) -> list[Device]:
    raise UsageError(f"--devices {word}: none of these cards can compute; see the warnings. Use --devices cpu.")
