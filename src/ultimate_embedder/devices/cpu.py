"""The host processor as a device."""

from __future__ import annotations

import sys
import threading

import psutil

from ultimate_embedder.types import MemorySnapshot

# activations of a few thousand tokens stay in the cache; larger batches are slower, not faster
CPU_BUDGET_TOKENS = 2048


class CpuDevice:
    """Runs models on the host; `allocated` is the resident memory of this process."""

    name = "cpu"
    fixed_budget_tokens: int | None = CPU_BUDGET_TOKENS
    lanes = 1

    def __init__(self) -> None:
        import torch

        self.torch_device = torch.device("cpu")
        self.turn = threading.Lock()

    def snapshot(self) -> MemorySnapshot:
        """Memory of the machine and of this process."""
        memory = psutil.virtual_memory()
        resident = psutil.Process().memory_info().rss
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

    def reset_peak(self) -> None:
        """Not possible: the system counts the peak of a process from its start."""

    def hold_ceiling(self) -> MemorySnapshot:
        """Nothing to hold: the system shares host memory out."""
        return self.snapshot()

    def dtype(self, precision: str) -> str:
        """float32 unless fp16 is asked for: half precision is no faster here."""
        return "float16" if precision == "fp16" else "float32"

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether the host had no memory for an allocation."""
        return isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)

    def release_cache(self) -> None:
        """Nothing to give back: torch does not cache host memory."""


def _peak_resident_bytes() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
