"""A card, real or simulated. The same lines serve both, through torch's device module."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultimate_embedder.devices.base import Features, Fetch
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.types import MemorySnapshot, StreamEvent

if TYPE_CHECKING:
    import numpy as np
    import torch

LIMIT_STEP = 0.005  # of the device: external memory that moves less than this does not move the limit


@dataclass(frozen=True)
class MemoryLimits:
    """How much of each device may be used: the first one up to a ceiling, each one up to a margin below its total."""

    gpu0_ceiling_bytes: int = 12 * 10**9
    safety_margin: float = 0.08

    def ceiling_bytes(self, index: int, total_bytes: int) -> int:
        """The most that device `index` may hold, on reserved + external bytes."""
        below_total = int(total_bytes * (1 - self.safety_margin))
        return min(self.gpu0_ceiling_bytes, below_total) if index == 0 else below_total


@dataclass(frozen=True)
class DeviceMark:
    """An event of the stream that computes."""

    event: Any

    def seconds_since(self, earlier: DeviceMark) -> float:
        """Time between two events, by the device's clock."""
        self.event.synchronize()
        return float(earlier.event.elapsed_time(self.event)) / 1000


class AcceleratorDevice:
    """One device of a kind that torch knows by name."""

    has_ceiling = True
    fixed_budget_tokens: int | None = None  # memory decides
    runs_ahead = True
    lanes = 1

    def __init__(
        self, kind: str, index: int, limits: MemoryLimits, clear_workspaces: Callable[[], None] | None = None
    ) -> None:
        """`clear_workspaces` frees what libraries keep on all devices of the kind: no device module of torch does."""
        import torch

        self.name = f"{kind}:{index}"
        self.torch_device = torch.device(kind, index)
        self.lock = OrderedLock(self.name, Rank.DEVICE)
        self._index = index
        self._module = torch.get_device_module(kind)
        self._total_bytes = int(self._module.mem_get_info(index)[1])
        self._ceiling_bytes = limits.ceiling_bytes(index, self._total_bytes)
        self._limit_fraction: float | None = None
        self._clear_workspaces = clear_workspaces
        # one for each way: a batch must not wait on its way in for the results of the one before
        self._sending, self._fetching = self.side_stream(), self.side_stream()

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
        """Let the library of matrix products take now what it keeps: else the first batch would be measured with it."""
        import torch

        with contextlib.suppress(torch.OutOfMemoryError):  # a batch that needs it will fail too, and be run otherwise
            one = torch.ones(1, 1, device=self.torch_device)
            torch.mm(one, one)

    def send(self, features: Features) -> Features:
        """Start to copy a batch from pinned memory, beside what the device computes."""
        import torch

        computing = self.current_stream()
        sent = dict(features)
        with self.use_stream(self._sending):
            for name, value in features.items():
                if isinstance(value, torch.Tensor):
                    sent[name] = self.pin(value).to(self.torch_device, non_blocking=True)
                    sent[name].record_stream(computing)  # it is used there: its memory must not be given away before
        computing.wait_stream(self._sending)
        return sent

    def fetch(self, vectors: torch.Tensor) -> Fetch:
        """Start to copy results into pinned memory, beside what the device computes next."""
        import torch

        self._fetching.wait_stream(self.current_stream())
        with self.use_stream(self._fetching):
            host = self.pin(torch.empty(vectors.shape, dtype=vectors.dtype))
            host.copy_(vectors, non_blocking=True)
            vectors.record_stream(self._fetching)
            fetched = self._module.Event(blocking=True)  # who waits for it must not keep a core busy
            fetched.record(self._fetching)

        def wait() -> np.ndarray:
            fetched.synchronize()
            return host.numpy()

        return wait

    def mark(self) -> DeviceMark:
        """An event, when the device gets to it."""
        event = self._module.Event(enable_timing=True)
        event.record(self.current_stream())
        return DeviceMark(event)

    def snapshot(self) -> MemorySnapshot:
        """Memory at this moment. What is neither free nor reserved by us is held by others."""
        free, total = self._module.mem_get_info(self._index)
        reserved = self._module.memory_reserved(self._index)
        return MemorySnapshot(
            device=self.name,
            total_bytes=total,
            free_bytes=free,
            allocated_bytes=self._module.memory_allocated(self._index),
            reserved_bytes=reserved,
            peak_bytes=self._module.max_memory_allocated(self._index),
            peak_reserved_bytes=self._module.max_memory_reserved(self._index),
            external_bytes=max(0, total - free - reserved),
            ceiling_bytes=self._ceiling_bytes,
        )

    def reset_peak(self) -> None:
        """Measure peaks from here."""
        self._module.reset_peak_memory_stats(self._index)

    def dtype(self, precision: str) -> str:
        """fp16 on cards before capability 8.0, bf16 from there on; whatever `is_bf16_supported` says of emulation."""
        if precision == "fp32":
            return "float32"
        if precision == "fp16":
            return "float16"
        major, _ = self._module.get_device_capability(self._index)
        return "bfloat16" if major >= 8 else "float16"

    def hold_ceiling(self) -> MemorySnapshot:
        """Make the allocator itself keep the ceiling, less what others hold now; gives the memory as it then is."""
        now = self.snapshot()
        fraction = max(0.0, (now.ceiling_bytes - now.external_bytes) / now.total_bytes)
        if self._limit_fraction is None or abs(fraction - self._limit_fraction) > LIMIT_STEP:
            self._module.set_per_process_memory_fraction(fraction, self._index)
            self._limit_fraction = fraction
        if now.reserved_bytes + now.external_bytes > now.ceiling_bytes:
            self.release_cache()
            return self.snapshot()
        return now

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error means that the device has no room."""
        import torch

        return isinstance(error, torch.OutOfMemoryError)

    def release_cache(self) -> None:
        """Give unused memory back to whoever else wants it."""
        self._module.empty_cache()

    def release_workspaces(self) -> None:
        """Let libraries give back what they keep, on this device and the others of its kind."""
        if self._clear_workspaces is not None:
            self._clear_workspaces()

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
            return tensor.pin_memory()
        except RuntimeError:
            return tensor
