"""Leases: the right of one model to a set of devices. A real lock, with an owner, and books about what is resident.

A lease waits until nobody else holds any of its devices, or refuses; it evicts what an earlier owner has left there
and what stands in the way; and when it ends, however it ends, the owner's weights go and the memory is what it was,
unless they were to stay for the next time and there is room.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from ultimate_embedder.devices.base import Device
from ultimate_embedder.errors import LeaseError
from ultimate_embedder.events import Emit, LeaseAcquired, LeaseReleased, ModelEvicted, ModelPlaced
from ultimate_embedder.locks import OrderedCondition, Rank


class Resident(Protocol):
    """A model on devices."""

    placing_seconds: float
    """What it took to bring it there."""
    devices: tuple[Device, ...]

    @property
    def description(self) -> str:
        """How it is there, in words."""
        ...

    @property
    def workers(self) -> int:
        """How many compute with it at the same time."""
        ...

    def bytes_by_device(self) -> dict[str, int]:
        """What it holds, by name of device."""
        ...

    def evict(self) -> list[str]:
        """Take it off its devices; gives what could not be cleared away, in words."""
        ...


AnyResident = TypeVar("AnyResident", bound=Resident)


class Lease:
    """Devices that are ours for now."""

    def __init__(
        self,
        owner: str,
        devices: Sequence[Device],
        party: str,
        collection: str | None,
        emit: Emit,
        lease_id: str = "",
        model_pass: int | None = None,
    ) -> None:
        self.id = lease_id
        """Its name in events."""
        self.model_pass = model_pass
        self.owner = owner
        self.devices = tuple(devices)
        self.party = party
        self.collection = collection
        self.emit = emit
        self._resident: Resident | None = None
        self._moving_seconds = 0.0
        self._bytes_before: dict[str, int] = {}

    @property
    def resident(self) -> Resident | None:
        """What is on the devices."""
        return self._resident

    @property
    def moving_seconds(self) -> float:
        """Spent on bringing weights and taking them away."""
        return self._moving_seconds

    @property
    def bytes_before(self) -> dict[str, int]:
        """Allocated bytes by device, when the lease began."""
        return self._bytes_before

    def occupy(
        self,
        kind: type[AnyResident],
        place: Callable[[], AnyResident],
        fits: Callable[[AnyResident], bool] = lambda resident: True,
    ) -> AnyResident:
        """Place a model on the devices, unless it is still there from an earlier lease, and fits."""
        started = time.perf_counter()
        resident = self._resident
        if not isinstance(resident, kind) or not fits(resident):
            if resident is not None:
                resident.evict()
            self._resident = resident = place()
        seconds = time.perf_counter() - started
        self._moving_seconds += seconds
        self.emit(
            ModelPlaced(
                collection=self.collection,
                model=self.owner,
                model_pass=self.model_pass,
                lease_id=self.id,
                devices=[device.name for device in self.devices],
                memory=[device.snapshot() for device in self.devices],
                placement=resident.description,
                workers=resident.workers,
                seconds=seconds,
            )
        )
        return resident

    def _begin(self, resident: Resident | None, bytes_before: dict[str, int]) -> None:
        self._resident, self._bytes_before = resident, bytes_before

    def _end(self, moving_seconds: float) -> None:
        self._moving_seconds += moving_seconds


class Leases:
    """The book of all leases and residents of a session; may be used from any thread."""

    def __init__(self, prefix: str = "") -> None:
        """`prefix` of the names of its leases: those of several processes that work on one run must differ."""
        self._names = (f"{prefix}{number}" for number in itertools.count(1))
        self._held: list[Lease] = []
        self._kept: dict[str, Resident] = {}
        self._befores: dict[str, dict[str, tuple[Device, int]]] = {}  # allocated bytes by party and device
        self._changed = OrderedCondition("leases", Rank.LEASES)

    @contextlib.contextmanager
    def lease(
        self,
        owner: str,
        devices: Sequence[Device],
        emit: Emit,
        *,
        collection: str | None = None,
        model_pass: int | None = None,
        party: str | None = None,
        needed_bytes: int = 0,
        keep: bool = False,
        wait_s: float | None = None,
    ) -> Iterator[Lease]:
        """Hold the devices. Owners of one `party` may hold a device together; all others wait, or are refused.

        `needed_bytes` must be free on each device: models that were kept warm there go if they stand in the way.
        `keep` leaves our own model there afterwards. `wait_s` is how long to wait, 0 for not at all.
        """
        party = party or f"{owner} #{time.monotonic_ns()}"
        with self._changed:
            name = next(self._names)
        mine = Lease(owner, devices, party, collection, emit, name, model_pass)
        waited = self._take(mine, wait_s)
        try:
            with self._changed:
                evicted = self._clear(mine, needed_bytes)
            self._report_acquired(mine, evicted, waited)
            yield mine
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to report
                self._give_back(mine, keep)
            raise
        self._give_back(mine, keep)

    def close(self, emit: Emit) -> None:
        """Evict whatever was kept warm: the run is over."""
        with self._changed:
            for owner in list(self._kept):
                self._evict(owner, "the run is over", emit)

    def _take(self, mine: Lease, wait_s: float | None) -> float:
        started = time.monotonic()
        with self._changed:
            while others := self._in_the_way(mine):
                left = None if wait_s is None else wait_s - (time.monotonic() - started)
                if left is not None and left <= 0:
                    names = ", ".join(device.name for device in mine.devices)
                    raise LeaseError(
                        f"{mine.owner} cannot have {names}: {' and '.join(others)} work there. "
                        "Wait until that has ended, or use other devices."
                    )
                self._changed.wait(left)
            self._held.append(mine)
        return time.monotonic() - started

    def _in_the_way(self, mine: Lease) -> list[str]:
        return [lease.owner for lease in self._held if lease.party != mine.party and _overlap(lease, mine)]

    def _clear(self, mine: Lease, needed_bytes: int) -> list[str]:
        """Keep our own model, if it is still where we want it; evict others that were kept and are in the way."""
        kept, evicted = None, []
        names = {device.name for device in mine.devices}
        for owner, resident in list(self._kept.items()):
            theirs = {device.name for device in resident.devices}
            if owner == mine.owner and theirs == names and not _any_lost(resident.devices):
                kept = self._kept.pop(owner)
            elif owner == mine.owner:
                self._evict(owner, "it is wanted on other devices", mine.emit)
        ours = kept.bytes_by_device() if kept else {}
        for owner, resident in list(self._kept.items()):
            here = [device for device in resident.devices if device.name in names]
            if any(device.hold_ceiling().usable_bytes < needed_bytes - ours.get(device.name, 0) for device in here):
                self._evict(owner, f"{mine.owner} needs the room", mine.emit)
                evicted.append(owner)
        # of the devices as they are without us; what we left there earlier is ours
        before = {
            device.name: max(0, device.snapshot().allocated_bytes - ours.get(device.name, 0)) for device in mine.devices
        }
        mine._begin(kept, before)
        return evicted

    def _give_back(self, mine: Lease, keep: bool) -> None:
        leftovers: list[str] = []
        placement, kept_bytes, alone = "nothing was placed", 0, True
        started = time.perf_counter()
        try:
            placement = mine.resident.description if mine.resident else placement
            if mine.resident is not None and keep and not _any_lost(mine.devices):
                kept_bytes = sum(mine.resident.bytes_by_device().values())
                with self._changed:
                    self._kept[mine.owner] = mine.resident
            elif mine.resident is not None:
                leftovers = mine.resident.evict()
            alone = self._release_memory(mine)
        finally:
            with self._changed:
                self._held.remove(mine)
                # companions may move to each other's devices: what is left is seen when the last of them has gone
                befores = self._befores.setdefault(mine.party, {})
                befores.update(
                    {device.name: (device, mine.bytes_before.get(device.name, 0)) for device in mine.devices}
                )
                last = not any(lease.party == mine.party for lease in self._held)
                if last:
                    del self._befores[mine.party]
                self._changed.notify_all()
        mine._end(time.perf_counter() - started)
        memory = [device.snapshot() for device in mine.devices]
        if last and alone and not keep:  # else libraries keep memory for others, which would be taken for ours
            leftovers += _bytes_left(befores)
        mine.emit(
            LeaseReleased(
                collection=mine.collection,
                model=mine.owner,
                devices=[device.name for device in mine.devices],
                memory=memory,
                placement=placement,
                kept_bytes=kept_bytes,
                leftovers=leftovers,
                moving_seconds=mine.moving_seconds,
                lease_id=mine.id,
                model_pass=mine.model_pass,
            )
        )

    def _release_memory(self, mine: Lease) -> bool:
        """Release what is cached and, unless others compute with it, what libraries keep; gives whether that went."""
        with self._changed:
            alone = self._held == [mine]
            if alone:
                for device in mine.devices:
                    device.release_workspaces()
        for device in mine.devices:
            device.release_cache()
        return alone

    def _evict(self, owner: str, why: str, emit: Emit) -> None:
        resident = self._kept.pop(owner)
        leftovers = resident.evict()
        for device in resident.devices:
            device.release_cache()
        devices = [device.name for device in resident.devices]
        emit(ModelEvicted(model=owner, devices=devices, why=why, leftovers=leftovers))

    def _report_acquired(self, mine: Lease, evicted: list[str], waited: float) -> None:
        kept = mine.resident
        mine.emit(
            LeaseAcquired(
                collection=mine.collection,
                model=mine.owner,
                devices=[device.name for device in mine.devices],
                memory=[device.snapshot() for device in mine.devices],
                waited_seconds=waited,
                evicted=evicted,
                saved_bytes=sum(kept.bytes_by_device().values()) if kept else 0,
                saved_seconds=kept.placing_seconds if kept else 0.0,
                lease_id=mine.id,
                model_pass=mine.model_pass,
            )
        )


def _bytes_left(befores: dict[str, tuple[Device, int]]) -> list[str]:
    """What is allocated now and was not before; only cards say what exactly is allocated."""
    more = {
        name: device.snapshot().allocated_bytes - before
        for name, (device, before) in befores.items()
        if device.has_ceiling and device.lost is None
    }
    return [f"{count} bytes on {name}" for name, count in more.items() if count > 0]


def _any_lost(devices: Sequence[Device]) -> bool:
    return any(device.lost is not None for device in devices)


def _overlap(one: Lease, other: Lease) -> bool:
    return bool({device.name for device in one.devices} & {device.name for device in other.devices})
