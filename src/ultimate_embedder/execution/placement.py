"""Put a model on the devices of a lease, and take it off again without a trace."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from ultimate_embedder.config import Parallelism
from ultimate_embedder.devices import Device, DeviceGroup, in_one_line
from ultimate_embedder.errors import DevicesLostError, StoppedError
from ultimate_embedder.execution.ladder import DEVICE_WITHOUT_ROOM, WEIGHTS_ON_HOST, Report
from ultimate_embedder.models import LoadedModel


class Watched(Protocol):
    """Runs something that asks a device, and raises `StoppedError` if that hangs."""

    def __call__(self, device: Device, job: Callable[[], bool]) -> bool:
        """What the job gives."""
        ...


def unwatched(device: Device, job: Callable[[], bool]) -> bool:
    """Just run it."""
    return job()


class Placement:
    """A model on devices: `seats` are the encoders that work there, each with its device."""

    def __init__(
        self,
        encoder: LoadedModel,
        devices: Sequence[Device],
        seats: list[tuple[LoadedModel, Device]],
        watched: Watched = unwatched,
    ) -> None:
        self._watched = watched
        self.devices = tuple(devices)
        self.placing_seconds = 0.0
        self.seats = seats
        self._hooks = encoder.count_hooks()

    def bytes_by_device(self) -> dict[str, int]:
        """Weights that are really there, by device; a group has them on its first member."""
        here = {id(encoder): encoder for encoder, _ in self.seats}.values()
        places = {str(device.torch_device): device.name for device in self.devices}
        held: dict[str, int] = {}
        for encoder in here:
            name = places.get(str(encoder.device))
            if name is not None:
                held[name] = held.get(name, 0) + encoder.weight_bytes
        return held

    def serves(self, dtype: str) -> bool:
        """Whether it computes in that precision; on a CPU every pass has the same one."""
        return all(encoder.dtype == dtype for encoder, device in self.seats if device.has_ceiling)

    @property
    def description(self) -> str:
        """How the model is there, in words."""
        names = " and ".join(dict.fromkeys(device.name for _, device in self.seats))
        copies = len({id(encoder) for encoder, _ in self.seats})
        if any(encoder.wrapper is not None for encoder, _ in self.seats):
            return f"nn.DataParallel over {names}"
        if all(encoder.device == device.torch_device for encoder, device in self.seats):
            shared = f", shared by {len(self.seats)} workers" if len(self.seats) > copies else ""
            return f"{copies} {'copies' if copies > 1 else 'copy'}, on {names}{shared}"
        return f"weights on the host, streamed to {names}"

    @property
    def workers(self) -> int:
        """One for each seat."""
        return len(self.seats)

    def evict(self) -> list[str]:
        """Move every copy to the host and drop wrappers; gives what is left behind all the same, in words."""
        encoders = [encoder for encoder, _ in self.seats]
        wrappers = [weakref.ref(encoder.wrapper) for encoder in encoders if encoder.wrapper is not None]
        for encoder in encoders:  # moved, not only dropped: somebody may still hold one
            encoder.wrapper = None
        home = [encoder for encoder in encoders if bring_home(encoder, self.devices, self._watched)]
        leftovers = ["a DataParallel wrapper that somebody holds" for wrapper in wrappers if wrapper() is not None]
        for encoder in home:
            leftovers += [f"{name} on {place}" for name, place in encoder.tensors_off_host()]
            if (more := encoder.count_hooks() - self._hooks) > 0:
                leftovers.append(f"{more} hooks on {encoder.name}")
        return leftovers


def place(
    encoder: LoadedModel,
    devices: Sequence[Device],
    parallelism: Parallelism,
    report: Report,
    watched: Watched = unwatched,
) -> Placement:
    """Bring the weights to the devices that have room for them.

    Copies are made from the host's: one made on a card and moved from there would take twice its place on that card.
    Where no device has room the first one works without: the weights wait on the host and are streamed.
    `watched` is what moves run in, here and when they are taken off again.
    """
    started = time.perf_counter()
    devices = [device for device in devices if device.lost is None]
    if not devices:
        raise DevicesLostError(f"{encoder.name}: no device is left to place it on")
    if parallelism == "data-parallel" and len(devices) > 1:
        placement = _place_split(encoder, devices, report, watched)
    else:
        most = 1 if parallelism == "none" else len(devices)
        placement = _place_replicas(encoder, devices, report, watched, most)
    placement.placing_seconds = time.perf_counter() - started
    return placement


def _place_replicas(
    encoder: LoadedModel, devices: Sequence[Device], report: Report, watched: Watched, most: int
) -> Placement:
    copies = [encoder, *(encoder.replica() for _ in range(most - 1))]
    waiting = list(copies)
    seats: list[tuple[LoadedModel, Device]] = []
    try:
        for device in devices:
            if not waiting:
                break
            if watched(device, partial(move, waiting[0], device)):
                mine = waiting.pop(0)
                seats += [(mine, part) for part in device.parts()]
            else:
                _report_no_room(encoder, device, report)
    except BaseException:
        for copy in copies:  # none may stay where it has got to
            bring_home(copy, devices, watched)
        raise
    return Placement(encoder, devices, seats or _without_weights(encoder, devices, report), watched)


def _place_split(encoder: LoadedModel, devices: Sequence[Device], report: Report, watched: Watched) -> Placement:
    """One copy, on the first device; `nn.DataParallel` sends it to the others with every batch."""
    room = [device for device in devices if device.hold_ceiling().usable_bytes >= encoder.weight_bytes]
    for device in devices:
        if device not in room:
            _report_no_room(encoder, device, report)
    if not room or not watched(room[0], partial(move, encoder, room[0])):
        return Placement(encoder, devices, _without_weights(encoder, devices, report), watched)
    if len(room) == 1:
        return Placement(encoder, devices, [(encoder, room[0])], watched)
    placement = Placement(encoder, devices, [], watched)
    split = encoder.split_over([device.torch_device for device in room])
    placement.seats.append((split, DeviceGroup(room, encoder.weight_bytes)))
    return placement


def _without_weights(
    encoder: LoadedModel, devices: Sequence[Device], report: Report
) -> list[tuple[LoadedModel, Device]]:
    names = " and ".join(device.name for device in devices)
    reason = f"{encoder.weight_bytes / 1e6:,.0f} MB of weights have no room on {names}"
    report(WEIGHTS_ON_HOST, {"device": devices[0].name, "reason": reason, "weight_bytes": encoder.weight_bytes})
    return [(encoder, devices[0])]


def _report_no_room(encoder: LoadedModel, device: Device, report: Report) -> None:
    room = device.snapshot().usable_bytes
    reason = f"{encoder.weight_bytes / 1e6:,.0f} MB of weights, {room / 1e6:,.0f} MB of room"
    details = {"device": device.name, "reason": reason, "usable_bytes": room, "weight_bytes": encoder.weight_bytes}
    report(DEVICE_WITHOUT_ROOM, details)


def bring_home(encoder: LoadedModel, devices: Sequence[Device], watched: Watched = unwatched) -> bool:
    """Move the weights to the host; False if they are lost with one of the devices."""
    places = {place for _, place in encoder.tensors_off_host()}
    here = [device for device in devices if str(device.torch_device) in places]
    if any(device.lost is not None for device in here):
        return False
    if not here:
        return True
    try:
        return watched(here[0], partial(_move_to_host, encoder))
    except StoppedError:  # it hangs; who runs next is stopped
        return False
    except RuntimeError as error:
        lost = [device for device in devices if device.is_lost(error) and not device.works()]
        if not lost:
            raise
        for device in lost:
            device.retire(in_one_line(error))
        return False


def _move_to_host(encoder: LoadedModel) -> bool:
    encoder.model.to("cpu")
    return True


def move(encoder: LoadedModel, device: Device) -> bool:
    """Put the weights on a device, if it has room for them; else they stay on the host."""
    if not encoder.runtime.weights_move:  # it has its own, on the host
        return True
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
    return False
