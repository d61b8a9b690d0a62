"""A card, real or simulated. The same lines serve both, through torch's device module."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ultimate_embedder.devices.base import Features, Fetch
from ultimate_embedder.devices.driver_errors import NO_ROOM, NO_ROOM_IF_LITTLE_IS_FREE, in_one_line, names_any
from ultimate_embedder.devices.formats import card_format
from ultimate_embedder.devices.limits import MemoryLimits
from ultimate_embedder.devices.lost import PinnedMemory, is_doubtful, says_lost
from ultimate_embedder.devices.transfers import Transfers
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.types import Capability, MemorySnapshot, StreamEvent

if TYPE_CHECKING:
    import torch

_hanging: weakref.WeakSet[AcceleratorDevice] = weakref.WeakSet()
LIMIT_STEP = 0.005  # of the device: memory of others that moves less than this does not move the limit
LITTLE_FREE_BYTES = 512 << 20  # a library's handle and its kernels take up to this


@dataclass(frozen=True)
class Vendor:
    """What a maker's own libraries know and do that torch's device module does not."""

    context_bytes: Callable[[int, int], int | None] = lambda index, reserved_bytes: None
    """What this process holds on card `index` beside the `reserved_bytes` of the allocator; None if unknown."""
    clear_workspaces: Callable[[], None] = lambda: None
    """Frees what libraries keep on all cards, which no device module of torch does."""
    kernels: Callable[[], str] = lambda: "unknown cards"
    """The kinds of cards that this torch has kernels for."""
    hardware: Callable[[int], str] = lambda index: "unknown card"
    """What card `index` is."""


@dataclass(frozen=True)
class DeviceMark:
    """An event of the stream that computes."""

    event: Any

    def seconds_since(self, earlier: DeviceMark) -> float:
        """Time between two events, by the device's clock."""
        self.event.synchronize()
        return float(earlier.event.elapsed_time(self.event)) / 1000


@dataclass(frozen=True)
class _Outside:
    """Bytes that are neither free nor reserved, and how many of these are this process's own."""

    total_bytes: int
    own_bytes: int


class AcceleratorDevice:
    """One device of a kind that torch knows by name."""

    has_ceiling = True
    has_vnni = False
    fixed_budget_tokens: int | None = None  # memory decides
    runs_ahead = True
    lanes = 1
    workers = 1
    lost: str | None = None
    hangs = False

    def __init__(self, kind: str, index: int, limits: MemoryLimits, vendor: Vendor | None = None) -> None:
        import torch

        self.name = f"{kind}:{index}"
        self.torch_device = torch.device(kind, index)
        self.lock = OrderedLock(self.name, Rank.DEVICE)
        self._index = index
        self._module = torch.get_device_module(kind)
        self._total_bytes = int(self._module.mem_get_info(index)[1])
        ceiling = limits.ceiling(index, self._total_bytes)
        self._ceiling_bytes, self.ceiling_reason = ceiling.size_bytes, ceiling.reason
        self._limit_fraction: float | None = None
        self._not_released = 0  # bytes that stayed in the cache when it was emptied last
        self._vendor = vendor or Vendor()
        self._outside = _Outside(0, 0)
        self._pinned = PinnedMemory()
        self.last_snapshot = MemorySnapshot(self.name, self._total_bytes, 0, 0, 0, 0, 0, 0, self._ceiling_bytes)
        self._transfers = Transfers(self, partial(self._module.Event, blocking=True))

    @property
    def capability(self) -> Capability:
        """The compute capability, as torch tells it."""
        major, minor = self._module.get_device_capability(self._index)
        return major, minor

    @property
    def hardware(self) -> str:
        """What the card is, as its maker calls it."""
        return self._vendor.hardware(self._index)

    def parts(self) -> list[AcceleratorDevice]:
        """Just this one."""
        return [self]

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Make this the device of the thread: kernels that models bring along launch on that one."""
        with self._module.device(self._index):
            with self.lock:
                self._allocate_workspace()
            yield

    def _allocate_workspace(self) -> None:
        """Let the library of matrix products take what it keeps per thread now, so that no batch is charged for it."""
        import torch

        try:
            one = torch.ones(1, 1, device=self.torch_device)
            torch.mm(one, one)
        except RuntimeError as error:
            if not self.is_out_of_memory(error):  # else a batch that needs it will fail too, and be run otherwise
                raise

    def send(self, features: Features) -> Features:
        """Start to copy a batch from pinned memory, beside what the device computes."""
        return self._transfers.send(features)

    def in_use(self, sent: Features) -> contextlib.AbstractContextManager[None]:
        """Compute with what was sent."""
        return self._transfers.in_use()

    def fetch(self, vectors: torch.Tensor, used: Any = None) -> Fetch:
        """Start to copy results into pinned memory, beside what the device computes next."""
        if vectors.device.type == "cpu":  # some models return their results on the host
            return lambda: vectors.numpy()
        return self._transfers.fetch(vectors, used)

    def mark(self) -> DeviceMark:
        """An event, when the device gets to it."""
        event = self._module.Event(enable_timing=True)
        event.record(self.current_stream())
        return DeviceMark(event)

    def snapshot(self) -> MemorySnapshot:
        """Memory at this moment. What is neither free, nor reserved, nor our context is held by others."""
        if self.lost is None:
            with self._retired_if_lost():
                self.last_snapshot = self._read_memory()
                return self.last_snapshot
        return self._nothing_left()

    def _read_memory(self) -> MemorySnapshot:
        """One question to the driver and one to the allocator: it is asked for each batch."""
        free, total = self._module.mem_get_info(self._index)
        stats = self._module.memory_stats_as_nested_dict(self._index)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        context = self._context_bytes(outside := max(0, total - free - reserved["current"]), reserved["current"])
        return MemorySnapshot(
            device=self.name,
            total_bytes=total,
            free_bytes=free,
            allocated_bytes=allocated["current"],
            reserved_bytes=reserved["current"],
            peak_bytes=allocated["peak"],
            peak_reserved_bytes=reserved["peak"],
            external_bytes=outside - context,
            context_bytes=context,
            ceiling_bytes=self._ceiling_bytes,
        )

    def _context_bytes(self, outside_bytes: int, reserved_bytes: int) -> int:
        """How much of what is neither free nor reserved is this process's own; asked for when it has changed."""
        if abs(outside_bytes - self._outside.total_bytes) > self._total_bytes * LIMIT_STEP:
            own = self._vendor.context_bytes(self._index, reserved_bytes) or 0
            self._outside = _Outside(outside_bytes, own)
        return min(self._outside.own_bytes, outside_bytes)

    def _nothing_left(self) -> MemorySnapshot:
        """The memory of a lost card: no room, and nothing of ours."""
        last = replace(self.last_snapshot, allocated_bytes=0, reserved_bytes=0)
        return replace(last, free_bytes=0, context_bytes=0, external_bytes=last.total_bytes)

    def reset_peak(self) -> None:
        """Measure peaks from here."""
        if self.lost is None:
            self._module.reset_peak_memory_stats(self._index)

    def dtype(self, precision: str) -> str:
        """The number format that `precision` (auto, fp32, fp16) means on this card."""
        return card_format(precision, self.capability)

    def hold_ceiling(self) -> MemorySnapshot:
        """Make the allocator itself keep the ceiling, less what others hold now; gives the memory as it then is."""
        now = self.snapshot()
        if self.lost is not None:
            return now
        fraction = max(0.0, (now.ceiling_bytes - now.outside_bytes) / now.total_bytes)
        if self._limit_fraction is None or abs(fraction - self._limit_fraction) > LIMIT_STEP:
            with self._retired_if_lost():
                self._limit(fraction)
                self._limit_fraction = fraction
        cached = now.reserved_bytes - now.allocated_bytes
        self._not_released = min(self._not_released, cached)
        over = now.reserved_bytes + now.outside_bytes > now.ceiling_bytes
        # it empties the caches of all cards: only if it helps this one, which it does not where nothing whole is free
        if over and cached - self._not_released > now.total_bytes * LIMIT_STEP:
            self.release_cache()
            now = self.snapshot()
            self._not_released = now.reserved_bytes - now.allocated_bytes
        return now

    def lift_ceiling(self) -> None:
        """Let the allocator have the whole card again: others use it in this process, such as a notebook."""
        if self.lost is None and self._limit_fraction is not None:
            with self._retired_if_lost():
                self._limit(1.0)
                self._limit_fraction = None

    def _limit(self, fraction: float) -> None:
        with self._module.device(self._index):  # torch leaves this card as the current one of the thread
            self._module.set_per_process_memory_fraction(fraction, self._index)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error means that the device has no room; it has many names."""
        import torch

        if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError):
            return isinstance(error, torch.OutOfMemoryError)
        if names_any(str(error), NO_ROOM):
            return True
        if self.lost is not None or not names_any(str(error), NO_ROOM_IF_LITTLE_IS_FREE):
            return False
        free_bytes = self.snapshot().free_bytes
        return self.lost is None and free_bytes < LITTLE_FREE_BYTES  # a card that is found lost has nothing free either

    def try_kernel(self) -> None:
        """Compute something small; raises what a card raises that torch sees and cannot use."""
        import torch

        ones = torch.ones(8, 8, device=self.torch_device)
        computed = float((ones @ ones).sum())
        if computed != 512:
            raise RuntimeError(f"a product of ones is {computed} there, not 512")

    def is_lost(self, error: BaseException) -> bool:
        """Whether an error means that the card can do nothing more for this process."""
        if self.lost is not None:
            return isinstance(error, RuntimeError)
        return says_lost(error) or (is_doubtful(error) and not self.works())

    def works(self) -> bool:
        """Whether the card still runs a kernel."""
        if self.lost is not None:
            return False
        try:
            self.try_kernel()
        except RuntimeError as error:
            return self.is_out_of_memory(error)
        return True

    def retire(self, reason: str, *, hangs: bool = False) -> None:
        """Ask nothing of the card any more: it is lost, or it hangs and whoever asks it would hang too."""
        self.lost = self.lost or reason
        self._pinned.never_free()
        if hangs:
            self.hangs = True
            _hanging.add(self)

    @contextlib.contextmanager
    def _retired_if_lost(self) -> Iterator[None]:
        """Reading and cleaning up never raise because of a lost card: what computes there will."""
        try:
            yield
        except RuntimeError as error:
            if not self.is_lost(error):
                raise
            self.retire(in_one_line(error))

    def release_cache(self) -> None:
        """Give unused memory back to whoever else wants it."""
        # torch does it for all cards of a kind: it would wait for one that hangs, and raise because of a lost one
        if self.lost is not None or any(card.torch_device.type == self.torch_device.type for card in _hanging):
            return
        try:
            self._module.empty_cache()
        except RuntimeError as error:
            if not says_lost(error):
                raise

    def release_workspaces(self) -> None:
        """Let libraries give back what they keep, on this device and the others of its kind."""
        with self._retired_if_lost():  # also where this one is lost: the others' go with the same call
            self._vendor.clear_workspaces()
            if self.lost is None:
                self._transfers.release()

    def current_stream(self) -> Any:
        """The stream that computes, on this thread."""
        return self._module.current_stream(self.torch_device)

    def side_stream(self) -> Any:
        """A new stream for copies beside what the device computes."""
        return self._module.Stream(device=self.torch_device)

    def use_stream(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Ask for work on that stream meanwhile."""
        meanwhile: contextlib.AbstractContextManager[Any] = self._module.stream(stream)
        return meanwhile

    def event(self) -> StreamEvent:
        """An event without a time: for waiting only."""
        import torch

        return torch.Event(device=self.torch_device)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same in memory that a device can copy from and to by itself; where there is none left, copies wait."""
        try:
            pinned = tensor.pin_memory()
        except RuntimeError:
            return tensor
        self._pinned.add(pinned)
        return pinned
