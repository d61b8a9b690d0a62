"""The host processor as a device."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from ultimate_embedder.devices.base import Features, Fetch
from ultimate_embedder.devices.formats import cpu_format
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.machine import has_vnni, processor_name, usable_cores
from ultimate_embedder.types import Capability, MemorySnapshot

if TYPE_CHECKING:
    import torch

# activations of a few thousand tokens stay in the cache; larger batches are slower, not faster
CPU_BUDGET_TOKENS = 1024
MOST_WORKERS = 32

# glibc's numbers for its settings, and how much it may hold back
MMAP_THRESHOLD, TRIM_THRESHOLD, ARENA_MAX = -3, -1, -8
KEPT_ALLOCATION_BYTES, KEPT_BYTES = 32 << 20, 256 << 20  # older versions refuse more than the first

_process = functools.cache(psutil.Process)  # by number: a process that was forked has its own


@dataclass(frozen=True)
class HostMark:
    """A time."""

    at: float

    def seconds_since(self, earlier: HostMark) -> float:
        """Time between the two."""
        return self.at - earlier.at


class HostStream:
    """Stands for the order of a program: what is asked for is done at once, so that there is nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        """It has happened."""

    def wait_stream(self, stream: Any) -> None:
        """It has nothing left to do."""


class HostEvent:
    """A point that has been passed."""

    def record(self, stream: Any) -> None:
        """Passed at once."""


class CpuDevice:
    """Runs models on the host; `allocated` is the resident memory of this process.

    Its cores work apart, each on batches of its own: a thread that computes alone waits for nobody, while threads that
    share an operation meet after each one. They share the weights, and Python's lock is free while torch computes.
    """

    name = "cpu"
    has_ceiling = False
    capability: Capability | None = None
    fixed_budget_tokens: int | None = CPU_BUDGET_TOKENS
    runs_ahead = False
    lanes = 1
    lost: str | None = None
    hangs = False
    ceiling_reason = "all memory of the machine; the system shares it out"

    def __init__(self, workers: int | None = None) -> None:
        import torch

        self.torch_device = torch.device("cpu")
        self.lock = OrderedLock(self.name, Rank.DEVICE)
        self.workers = workers or min(usable_cores(), MOST_WORKERS)
        self.has_vnni = has_vnni()

    def parts(self) -> list[CpuDevice]:
        """One for each worker."""
        _keep_freed_memory()
        return [CpuDevice(workers=1) for _ in range(self.workers)]

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Let operations of this thread use one core."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def send(self, features: Features) -> Features:
        """Nothing to copy."""
        return features

    def in_use(self, sent: Features) -> contextlib.AbstractContextManager[None]:
        """Nothing runs ahead."""
        return contextlib.nullcontext()

    def fetch(self, vectors: torch.Tensor, used: Any = None) -> Fetch:
        """The results, which are there."""
        return vectors.numpy

    def mark(self) -> HostMark:
        """Now: a call returns when its work is done."""
        return HostMark(time.perf_counter())

    def snapshot(self) -> MemorySnapshot:
        """Memory of the machine and of this process."""
        memory = psutil.virtual_memory()
        resident = _process(os.getpid()).memory_info().rss
        return MemorySnapshot(
            device=self.name,
            total_bytes=memory.total,
            free_bytes=memory.available,
            allocated_bytes=resident,
            reserved_bytes=resident,
            peak_bytes=max(resident, _peak_resident_bytes()),
            peak_reserved_bytes=max(resident, _peak_resident_bytes()),
            external_bytes=max(0, memory.total - memory.available - resident),
            ceiling_bytes=memory.total,
        )

    @property
    def last_snapshot(self) -> MemorySnapshot:
        """As it is now: the host does not hang."""
        return self.snapshot()

    def reset_peak(self) -> None:
        """Not possible: the system counts the peak of a process from its start."""

    def hold_ceiling(self) -> MemorySnapshot:
        """Nothing to hold: the system shares host memory out."""
        return self.snapshot()

    def lift_ceiling(self) -> None:
        """Nothing to lift."""

    def dtype(self, precision: str) -> str:
        """The number format that `precision` means here."""
        return cpu_format(precision)

    @property
    def hardware(self) -> str:
        """What the processor is."""
        return processor_name()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether the host had no memory for an allocation."""
        return isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)

    def is_lost(self, error: BaseException) -> bool:
        """Never: without the host there is no program."""
        return False

    def works(self) -> bool:
        """Always."""
        return True

    def retire(self, reason: str, *, hangs: bool = False) -> None:
        """Nothing to retire."""

    def release_cache(self) -> None:
        """Nothing to give back: torch does not cache host memory."""

    def release_workspaces(self) -> None:
        """Nothing to give back: what libraries keep on the host is not counted."""

    def current_stream(self) -> HostStream:
        """The order of the program."""
        return HostStream()

    def side_stream(self) -> HostStream:
        """The same: nothing runs beside it."""
        return HostStream()

    def use_stream(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """No other way to ask for work."""
        return contextlib.nullcontext()

    def event(self) -> HostEvent:
        """A point that has been passed as soon as it is recorded."""
        return HostEvent()

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """As it is: nothing is copied."""
        return tensor


@functools.cache
def _keep_freed_memory() -> None:
    """Let freed memory stay with the process, where glibc manages it.

    Torch frees what an operation gave as soon as the next one is done, and glibc returns that to the system, which
    has to clear the pages for the operation after: a twentieth of the time. A thread's own arena is returned whenever
    it is empty, so all threads share the main one; what they allocate often is small and cached by thread anyway.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if set_option is not None and set_option(MMAP_THRESHOLD, KEPT_ALLOCATION_BYTES):
        set_option(TRIM_THRESHOLD, KEPT_BYTES)
        set_option(ARENA_MAX, 1)


def _peak_resident_bytes() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return int(getattr(_process(os.getpid()).memory_info(), "peak_wset", 0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
