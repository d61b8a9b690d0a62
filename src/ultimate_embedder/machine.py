"""The CPU cores and the memory of the host that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Cores that this process may use, by CPU affinity and container quota."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = CGROUP_QUOTA.read_text().split()
    except (OSError, ValueError):  # no container, or not Linux
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def available_bytes() -> int:
    """Host memory that can be had without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)
