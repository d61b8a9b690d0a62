"""The host processor as a device."""

from __future__ import annotations

import sys

import psutil

from ultimate_embedder.types import MemorySnapshot

# activations of a few thousand tokens stay in the cache; larger batches are slower, not faster
CPU_BUDGET_TOKENS = 2048


class CpuDevice:
    """Runs models on the host; `allocated` is the resident memory of this process."""

    name = "cpu"

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
            external_bytes=max(0, memory.total - memory.available - resident),
        )

    def dtype(self, precision: str) -> str:
        """float32 unless fp16 is asked for: half precision is no faster here."""
        return "float16" if precision == "fp16" else "float32"

    def budget_tokens(self) -> int:
        """How many padded tokens one batch may have."""
        return CPU_BUDGET_TOKENS

    def synchronize(self) -> None:
        """Nothing to wait for: the host computes when told."""

    def release_cache(self) -> None:
        """Nothing to give back: torch does not cache host memory."""


def _peak_resident_bytes() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
