"""Events of a node as the run tells them: devices and leases with the node's name, times by the driver's clock."""

from __future__ import annotations

import dataclasses
from typing import Any

from ultimate_embedder.events import Event, Mitigated, ModelLoaded, ModelLoadStarted, Warned
from ultimate_embedder.types import MemorySnapshot, device_on

NOT_TOLD = (ModelLoadStarted, ModelLoaded)  # what the driver tells once, for all nodes


def of_node(event: Event, node: str, clock_ahead_s: float = 0.0) -> Event | None:
    """The event as one of this node, whose clock is so much ahead of ours; None if it is not told."""
    if isinstance(event, NOT_TOLD):
        return None
    given = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    changed: dict[str, Any] = {"timestamp": event.timestamp - clock_ahead_s}
    if given.get("began") is not None:
        changed["began"] = given["began"] - clock_ahead_s
    if "device" in given:
        changed["device"] = device_on(node, given["device"])
    if "devices" in given:
        changed["devices"] = [device_on(node, each) for each in given["devices"]]
    for name, value in given.items():
        if isinstance(value, MemorySnapshot):
            changed[name] = _memory_of(node, value)
        elif isinstance(value, list) and value and isinstance(value[0], MemorySnapshot):
            changed[name] = [_memory_of(node, each) for each in value]
    if given.get("lease_id"):
        changed["lease_id"] = f"{node}/{given['lease_id']}"
    if isinstance(event, Mitigated) and event.details.get("device"):
        changed["details"] = {**event.details, "device": device_on(node, event.details["device"])}
    if isinstance(event, Warned):
        changed["message"] = f"{node}: {event.message}"
    return dataclasses.replace(event, **changed)


def _memory_of(node: str, memory: MemorySnapshot) -> MemorySnapshot:
    return dataclasses.replace(memory, device=device_on(node, memory.device))
