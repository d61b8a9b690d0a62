"""A device of another machine, as far as a driver must know it."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from ultimate_embedder.devices import Device
from ultimate_embedder.execution.cluster.facts import NodeFacts, RemoteDeviceFacts
from ultimate_embedder.types import Capability, MemorySnapshot, device_on


class RemoteDevice:
    """Says what it is; computes nothing here. What becomes of it is the business of its node."""

    lost = None
    """A node that is gone is told of as such."""

    def __init__(self, node: str, known: RemoteDeviceFacts) -> None:
        self.name = device_on(node, known.facts.name)
        self.hardware = known.facts.hardware
        self.workers = known.facts.workers
        self.has_ceiling = known.has_ceiling
        self.ceiling_reason = known.ceiling_reason
        self.capability: Capability | None = known.capability
        self.has_vnni = known.has_vnni
        self._dtype = known.dtype
        self.last_snapshot = replace(known.memory, device=self.name)

    def snapshot(self) -> MemorySnapshot:
        """Memory when the node joined."""
        return self.last_snapshot

    def dtype(self, precision: str) -> str:
        """The number format of this run there."""
        return self._dtype

    def lift_ceiling(self) -> None:
        """Nothing to do: the process on the node ends with the run."""


def devices_of(node: str, facts: NodeFacts) -> tuple[Device, ...]:
    """The devices of a node for a session, which asks no more of them than they can say."""
    return tuple(cast("Device", RemoteDevice(node, each)) for each in facts.devices)
