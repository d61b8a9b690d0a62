"""The devices of a run, and which models have leased them."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from ultimate_embedder import events
from ultimate_embedder.execution import FRESH_PROCESS, NODE_LOST
from ultimate_embedder.report.live.device_use import DeviceUse, Lessee
from ultimate_embedder.report.live.recent import amount
from ultimate_embedder.report.live.rows import DeviceRow, LeaseRow
from ultimate_embedder.report.live.sentences import shown
from ultimate_embedder.types import MemorySnapshot, device_on, node_of

MOST_DEVICES = 256
MOST_LEASES = 64
DEVICE_LOST = "device_lost"


class Devices:
    """Folds what happens on devices."""

    def __init__(self) -> None:
        self.left_out = 0
        self._devices: dict[str, DeviceUse] = {}
        self._leases: dict[Lessee, LeaseRow] = {}

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        match event:
            case events.BatchEncoded():
                self._batch(event)
            case events.BatchesEncoded():
                self._batches(event)
            case events.DeviceOpened():
                if device := self._device(event.device):
                    device.open(event.ceiling_bytes, shown(event.ceiling_reason))
            case events.NodeJoined():
                for each in event.devices[:MOST_DEVICES]:
                    if device := self._device(device_on(event.node, each.name)):
                        device.open(each.ceiling_bytes, None)
            case events.LeaseAcquired():
                self._lease(event)
            case events.LeaseReleased():
                self._release((event.collection, event.model), {node_of(device) for device in event.devices})
                self._memory(event.memory)
            case events.ModelPlaced():
                self._memory(event.memory)
            case events.BatchStalled():
                self._memory([event.memory])
            case events.Mitigated():
                self._mitigated(event)
            case events.CollectionFinished():
                for lessee in [lessee for lessee in self._leases if lessee[0] == event.collection]:
                    self._release(lessee)
            case events.RunFinished():
                for lessee in list(self._leases):
                    self._release(lessee)
            case _:
                pass

    def rows(self, now: float, at_work: AbstractSet[Lessee]) -> tuple[DeviceRow, ...]:
        """All devices at this moment; `at_work` are the passes that have something to do."""
        return tuple(device.row(now, at_work) for device in self._devices.values())

    def leases(self) -> tuple[LeaseRow, ...]:
        """The leases that are not released."""
        return tuple(self._leases.values())

    def _device(self, name: str) -> DeviceUse | None:
        """None if there are too many: names come from a file, which may be damaged."""
        if name not in self._devices:
            if len(self._devices) >= MOST_DEVICES:
                self.left_out += 1
                return None
            self._devices[name] = DeviceUse(shown(name))
        return self._devices[name]

    def _memory(self, snapshots: Sequence[MemorySnapshot], *, peak: bool = False) -> None:
        for memory in snapshots[:MOST_DEVICES]:
            if device := self._device(memory.device):
                device.read_memory(memory, peak=peak)

    def _batch(self, event: events.BatchEncoded) -> None:
        begin, end = span_of(event)
        if device := self._device(event.device):
            waited = amount(event.wait_seconds)
            device.work(event.tokens, amount(event.forward_seconds), begin, end)
            device.wait(waited, begin - waited, begin)
        self._memory([event.memory], peak=True)

    def _batches(self, event: events.BatchesEncoded) -> None:
        begin, end = span_of(event)
        if device := self._device(event.device):
            device.work(event.tokens, amount(event.forward_seconds), begin, end)
            device.wait(amount(event.wait_seconds), begin, end)
        self._memory([event.memory], peak=True)

    def _lease(self, event: events.LeaseAcquired) -> None:
        lessee = (event.collection, event.model)
        known = self._leases.get(lessee)
        if known is not None or len(self._leases) < MOST_LEASES:
            # each node of a cluster has a lease of its own
            others = [] if known is None else _elsewhere(known.devices, {node_of(each) for each in event.devices})
            devices = tuple([*others, *map(shown, event.devices)][:MOST_DEVICES])
            where = None if event.collection is None else shown(event.collection)
            since = known.since if known is not None and others else event.timestamp
            self._leases[lessee] = LeaseRow(where, shown(event.model), devices, since)
        for name in event.devices[:MOST_DEVICES]:
            if device := self._device(name):
                device.leased_by[lessee], device.lost = shown(event.model), None
        self._memory(event.memory)

    def _release(self, lessee: Lessee, nodes: AbstractSet[str | None] | None = None) -> None:
        """Take the devices of some nodes from it, or all."""
        lease = self._leases.pop(lessee, None)
        if lease is not None and nodes is not None and (left := _elsewhere(lease.devices, nodes)):
            self._leases[lessee] = replace(lease, devices=tuple(left))
        for name, device in self._devices.items():
            if nodes is None or node_of(name) in nodes:
                device.leased_by.pop(lessee, None)

    def _mitigated(self, event: events.Mitigated) -> None:
        if event.kind == FRESH_PROCESS.kind:  # the process before it has no leases any more
            for lessee in list(self._leases):
                self._release(lessee)
        name = event.details.get("device")
        if event.kind == DEVICE_LOST and isinstance(name, str) and (device := self._device(name)):
            device.lost = shown(event.details.get("error") or "it stopped working")
        if event.kind == NODE_LOST.kind and isinstance(name, str):
            for lessee in list(self._leases):
                self._release(lessee, {name})
            for each, device in self._devices.items():
                if node_of(each) == name:
                    device.lost = shown(event.details.get("reason") or "its node is gone")


def _elsewhere(devices: Sequence[str], nodes: AbstractSet[str | None]) -> list[str]:
    """Those that are not on one of these nodes."""
    return [device for device in devices if node_of(device) not in nodes]


def span_of(event: events.BatchEncoded | events.BatchesEncoded) -> tuple[float, float]:
    """From when to when batches were computed."""
    took, at = amount(event.forward_seconds), event.timestamp
    begin = at - took if event.began is None else min(at, amount(event.began))
    return begin, at if isinstance(event, events.BatchesEncoded) else min(at, begin + took)
