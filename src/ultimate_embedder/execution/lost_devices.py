"""Tell of lost devices: the user once, the summary with what others have to do instead."""

from __future__ import annotations

from collections.abc import Sequence

from ultimate_embedder.devices import Device, DeviceGroup
from ultimate_embedder.events import Mitigated, Warned
from ultimate_embedder.execution.ladder import DEVICE_LOST, NO_DEVICE_LEFT
from ultimate_embedder.session import Session


def tell_lost(
    devices: Sequence[Device], session: Session, collection: str, *, model: str | None = None, rows: int = 0
) -> None:
    """Tell of those that are lost; of one that was told of before only if `rows` of it are left to others now."""
    for device in (member for each in devices for member in members_of(each)):
        if device.lost is None:
            continue
        first = session.faults.note(device)
        if first or rows:
            details = {
                "model": model,
                "device": device.name,
                "reason": device.lost,
                "error": device.lost,
                "rows": rows,
            }
            session.emit(Mitigated(collection=collection, kind=DEVICE_LOST.kind, details=details))
        if first:
            message = f"{device.name} stopped working: {device.lost}. The run goes on without it."
            session.emit(Warned(collection=collection, message=message))


def tell_none_left(session: Session, collection: str) -> None:
    """Tell that the CPU has to do the rest."""
    reasons = "; ".join(f"{device.name}: {device.lost}" for device in session.devices)
    session.emit(Mitigated(collection=collection, kind=NO_DEVICE_LEFT.kind, details={"reason": reasons}))
    message = f"no GPU is left ({reasons}). The rest is computed on the CPU, in fp32."
    session.emit(Warned(collection=collection, message=message))


def members_of(device: Device) -> Sequence[Device]:
    """The device itself, or those that a group is made of."""
    return device.members if isinstance(device, DeviceGroup) else [device]
