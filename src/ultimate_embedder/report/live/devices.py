"""The devices of a run, and which models have leased them."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from ultimate_embedder import events
from ultimate_embedder.execution import FRESH_PROCESS
from ultimate_embedder.report.live.device_use import DeviceUse, Lessee
from ultimate_embedder.report.live.recent import amount
from ultimate_embedder.report.live.rows import DeviceRow, LeaseRow
from ultimate_embedder.report.live.sentences import shown
from ultimate_embedder.types import MemorySnapshot

MOST_DEVICES = 64
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
            case events.LeaseAcquired():
                self._lease(event)
            case events.LeaseReleased():
                self._release((event.collection, event.model))
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
        if lessee in self._leases or len(self._leases) < MOST_LEASES:
            devices = tuple(map(shown, event.devices[:MOST_DEVICES]))
            where = None if event.collection is None else shown(event.collection)
            self._leases[lessee] = LeaseRow(where, shown(event.model), devices, event.timestamp)
        for name in event.devices[:MOST_DEVICES]:
            if device := self._device(name):
                device.leased_by[lessee], device.lost = shown(event.model), None
        self._memory(event.memory)

    def _release(self, lessee: Lessee) -> None:
        self._leases.pop(lessee, None)
        for device in self._devices.values():
            device.leased_by.pop(lessee, None)

    def _mitigated(self, event: events.Mitigated) -> None:
        if event.kind == FRESH_PROCESS.kind:  # the process before it has no leases any more
            for lessee in list(self._leases):
                self._release(lessee)
        name = event.details.get("device")
        if event.kind == DEVICE_LOST and isinstance(name, str) and (device := self._device(name)):
            device.lost = shown(event.details.get("error") or "it stopped working")


def span_of(event: events.BatchEncoded | events.BatchesEncoded) -> tuple[float, float]:
    """From when to when batches were computed."""
    took, at = amount(event.forward_seconds), event.timestamp
    begin = at - took if event.began is None else min(at, amount(event.began))
    return begin, at if isinstance(event, events.BatchesEncoded) else min(at, begin + took)
