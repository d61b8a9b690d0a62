"""Several devices that work on each batch together, as `nn.DataParallel` has them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ultimate_embedder.devices.base import Device, Features, Fetch, Mark
from ultimate_embedder.devices.lost import keeping
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.types import MemorySnapshot, Stream, StreamEvent

if TYPE_CHECKING:
    import torch


class DeviceGroup:
    """Looks like one device to whoever plans batches: the one with the least room, which decides for all.

    The weights live on the first; a batch is split evenly, so each of the others sees as many rows.
    """

    has_ceiling = True
    has_vnni = False
    fixed_budget_tokens: int | None = None
    runs_ahead = True
    workers = 1

    def __init__(self, members: Sequence[Device], weight_bytes: int) -> None:
        self.members = tuple(members)
        self._weight_bytes = weight_bytes
        self.name = "+".join(device.name for device in members)
        self.torch_device = members[0].torch_device
        self.capability = members[0].capability  # of one kind
        self.lanes = len(members)
        self.ceiling_reason = members[0].ceiling_reason
        self.lock = OrderedLock(self.name, Rank.DEVICE)

    @property
    def hardware(self) -> str:
        """As the first member."""
        return self.members[0].hardware

    def parts(self) -> list[DeviceGroup]:
        """Just this one: its members work on each batch together."""
        return [self]

    def computing(self) -> contextlib.AbstractContextManager[None]:
        """As the first member, where results are gathered."""
        return self.members[0].computing()

    def send(self, features: Features) -> Features:
        """Nothing yet: each member is sent its rows when the batch is split."""
        return features

    def fetch(self, vectors: torch.Tensor, used: Any = None) -> Fetch:
        """From the first member, where results are gathered."""
        return self.members[0].fetch(vectors, used)

    def mark(self) -> Mark:
        """Of the first member, which ends last."""
        return self.members[0].mark()

    def snapshot(self) -> MemorySnapshot:
        """Memory of the member that has held most."""
        return max((device.snapshot() for device in self.members), key=lambda now: now.peak_bytes)

    @property
    def last_snapshot(self) -> MemorySnapshot:
        """Of the member that had held most."""
        return max((device.last_snapshot for device in self.members), key=lambda last: last.peak_bytes)

    @property
    def lost(self) -> str | None:
        """Why a member is lost: without it no batch can be split."""
        return next((device.lost for device in self.members if device.lost is not None), None)

    @property
    def hangs(self) -> bool:
        """Whether a member does."""
        return any(device.hangs for device in self.members)

    def is_lost(self, error: BaseException) -> bool:
        """Whether an error means that a member is lost."""
        return any(device.is_lost(error) for device in self.members)

    def works(self) -> bool:
        """Whether every member still computes."""
        return all(device.works() for device in self.members)

    def retire(self, reason: str, *, hangs: bool = False) -> None:
        """Retire the members that are lost; all of them where it cannot be told which hangs."""
        if self.lost is not None:
            return
        broken = [] if hangs else [device for device in self.members if not device.works()]
        for device in broken or self.members:
            device.retire(reason, hangs=hangs)

    def in_use(self, sent: Features) -> contextlib.AbstractContextManager[None]:
        """Compute with what was sent; `nn.DataParallel` copies it on streams of its own."""
        return keeping(sent, self.is_lost, lambda: [each.torch_device for each in self.members if not each.works()])

    def reset_peak(self) -> None:
        """Measure peaks from here."""
        for device in self.members:
            device.reset_peak()

    def hold_ceiling(self) -> MemorySnapshot:
        """Make every allocator keep its ceiling; gives the memory of the member with the least room."""
        first, *others = [device.hold_ceiling() for device in self.members]
        return min([first, *map(self._with_weights, others)], key=lambda now: now.usable_bytes)

    def lift_ceiling(self) -> None:
        """Let every allocator have its whole card again."""
        for device in self.members:
            device.lift_ceiling()

    def _with_weights(self, now: MemorySnapshot) -> MemorySnapshot:
        """As it will be during a forward: the weights are copied there for each, and dropped after it."""
        return replace(
            now,
            allocated_bytes=now.allocated_bytes + self._weight_bytes,
            free_bytes=max(0, now.free_bytes - self._weight_bytes),
        )

    def dtype(self, precision: str) -> str:
        """What the first member says: they are of one kind."""
        return self.members[0].dtype(precision)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error means that a member has no room."""
        return any(device.is_out_of_memory(error) for device in self.members)

    def release_cache(self) -> None:
        """Give unused memory back to whoever else wants it."""
        for device in self.members:
            device.release_cache()

    def release_workspaces(self) -> None:
        """Let libraries give back what they keep on each member."""
        for device in self.members:
            device.release_workspaces()

    def current_stream(self) -> Stream:
        """Of the first member, where the weights are; so are those below."""
        return self.members[0].current_stream()

    def side_stream(self) -> Stream:
        """A new stream for copies beside what the first member computes."""
        return self.members[0].side_stream()

    def use_stream(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Ask for work on that stream meanwhile."""
        return self.members[0].use_stream(stream)

    def event(self) -> StreamEvent:
        """An event that streams can record and wait for."""
        return self.members[0].event()

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the host in memory that devices can copy from and to by themselves."""
        return self.members[0].pin(tensor)
