"""A mode is data: whether the models of a collection work together or in turn, and how long each keeps the devices.

Which device a companion gets, and what `auto` means, are pure functions of what models need and what devices have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Mode:
    """How the passes over a collection share the devices."""

    together: bool
    """All models at the same time, each on a device of its own; else one after the other, each on all devices."""
    lease: Literal["collection", "turn"]
    """How long a model keeps its devices."""


MODES: dict[str, Mode] = {
    "single": Mode(together=False, lease="collection"),
    "simultaneous": Mode(together=True, lease="collection"),
    "sequential": Mode(together=False, lease="turn"),
    "exclusive": Mode(together=False, lease="collection"),
}


@dataclass(frozen=True)
class MemoryNeed:
    """What a model takes on a device: weights, and activations of the smallest and of a comfortable batch."""

    model: str
    weight_bytes: int
    smallest_bytes: int
    comfortable_bytes: int


def assign_devices(
    needs: Sequence[MemoryNeed], room_bytes: Sequence[int], *, comfortably: bool = False
) -> list[int | None]:
    """A device for each model that is to stay there: the first for the primary, the next with room for each companion.

    None stands for the CPU. Models may share a device: one forward is run at a time, so that they need room for all
    their weights and for the largest of their batches. With the primary a companion shares only in comfort.
    """
    tenants: list[list[MemoryNeed]] = [[] for _ in room_bytes]
    tenants[0].append(needs[0])
    places: list[int | None] = [0]
    for need in needs[1:]:
        others = sorted(range(1, len(room_bytes)), key=lambda device: len(tenants[device]))
        fitting = (
            device
            for device in [*others, 0]
            if _bytes([*tenants[device], need], comfortably or device == 0) <= room_bytes[device]
        )
        places.append(next(fitting, None))
        if (place := places[-1]) is not None:
            tenants[place].append(need)
    return places


def choose_mode(needs: Sequence[MemoryNeed], room_bytes: Sequence[int]) -> tuple[str, str]:
    """What `auto` means: all models at once where each has room for comfortable batches, else one after the other."""
    if not room_bytes:
        return "exclusive", "on a CPU models at the same time would only share its cores"
    if _bytes(needs[:1], comfortable=True) > room_bytes[0]:
        return "exclusive", f"{needs[0].model} needs the first device to itself, and more"
    for need, place in zip(needs, assign_devices(needs, room_bytes, comfortably=True), strict=True):
        if place is None:
            wanted = _bytes([need], comfortable=True)
            return "exclusive", f"no device has {wanted / 1e6:,.0f} MB for {need.model} beside the models before it"
    return "simultaneous", "all models fit on the devices with room for comfortable batches"


def _bytes(needs: Sequence[MemoryNeed], comfortable: bool) -> int:
    activations = [need.comfortable_bytes if comfortable else need.smallest_bytes for need in needs]
    return sum(need.weight_bytes for need in needs) + max(activations)
