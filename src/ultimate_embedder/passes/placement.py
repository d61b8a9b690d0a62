"""Put a model on the devices of a pass, one copy each, and take it off again whatever happens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ultimate_embedder.devices import Device
from ultimate_embedder.models import Encoder

Report = Callable[[str, dict[str, Any]], None]


@contextlib.contextmanager
def placed(encoder: Encoder, devices: Sequence[Device], report: Report) -> Iterator[list[tuple[Encoder, Device]]]:
    """Give an encoder on each device that has room for its weights; the host gets them all back after.

    Copies are made from the host's: one made on a card and moved from there would take twice its place on that card.
    Where no device has room the first one works without: the weights wait on the host and are streamed.
    """
    copies = [encoder, *(encoder.replica() for _ in devices[1:])]
    placements: list[tuple[Encoder, Device]] = []
    try:
        for mine, device in zip(copies, devices, strict=True):
            if move(mine, device):
                placements.append((mine, device))
            else:
                room = device.snapshot().usable_bytes
                report("device_without_room", {"device": device.name, "usable_bytes": room, **_needs(encoder)})
        if not placements:
            report("weights_on_host", {"device": devices[0].name, **_needs(encoder)})
            placements.append((encoder, devices[0]))
        yield placements
    finally:
        for mine in copies:  # moved, not only dropped: somebody may still hold one
            mine.model.to("cpu")
        for device in devices:
            device.release_cache()


def move(encoder: Encoder, device: Device) -> bool:
    """Put the weights on a device, if it has room for them; else they stay on the host."""
    if encoder.weight_bytes > device.hold_ceiling().usable_bytes:
        return False
    try:
        encoder.model.to(device.torch_device)
    except Exception as error:
        if not device.is_out_of_memory(error):
            raise
        error.__traceback__ = None
    else:
        return True
    encoder.model.to("cpu")
    device.release_cache()
    return False


def _needs(encoder: Encoder) -> dict[str, Any]:
    return {"weight_bytes": encoder.weight_bytes}
