"""The host: cores and memory that this process may use, what tells it from others, its processes."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import socket
from pathlib import Path

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CPU_INFO = Path("/proc/cpuinfo")
CPU_INFO_BYTES = 1 << 20
VNNI_FLAGS = frozenset({"avx512_vnni", "avx_vnni"})
COMPUTING_FLAGS = ("amx", "asimd", "avx", "bf16", "fma", "i8mm", "sve")
PROC = Path("/proc/self")
PID_NAMESPACE = PROC / "ns" / "pid"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def usable_cores() -> int:
    """Cores that this process may use, by CPU affinity and container quota."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = CGROUP_QUOTA.read_text().split()
    except (OSError, ValueError):  # no container, or not Linux
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


@functools.cache
def processor_name() -> str:
    """What the processor is, as its maker calls it."""
    try:
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        return platform.processor()
    return platform.processor()


def processor_flags(cpu_info: Path = CPU_INFO) -> frozenset[str] | None:
    """The features that the processor announces, of its first core; None where the system has no such file."""
    try:
        with open(cpu_info, encoding="utf-8", errors="replace") as file:
            text = file.read(CPU_INFO_BYTES)
    except OSError:
        return None
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(match[1].split()) if match else None


@functools.cache
def has_vnni() -> bool:
    """Whether the processor announces instructions that multiply int8; False where that cannot be read."""
    return bool((processor_flags() or frozenset()) & VNNI_FLAGS)


@functools.cache
def processor_identity() -> str:
    """Tells processors apart by what they compute with: in virtual machines different ones have the same name."""
    flags = processor_flags() or frozenset()
    computing = sorted(flag for flag in flags if flag.startswith(COMPUTING_FLAGS))
    return " ".join([processor_name(), *computing])


def available_bytes() -> int:
    """Host memory that can be had without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)


def machine_identity() -> str:
    """Tells machines apart in which process ids mean different processes: host, boot, and container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not Linux
        parts += [BOOT_ID.read_text().strip(), str(PID_NAMESPACE.readlink())]
    return " ".join(parts)


def process_start(pid: int) -> str | None:
    """When a process started, to tell it from a later one with the same id; None if there is none."""
    if PROC.is_dir():  # Linux, where it is counted from boot: setting the clock does not change it
        try:
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if state in ("Z", "X") else fields[18]
    import psutil

    try:
        return str(round(psutil.Process(pid).create_time()))
    except psutil.Error:
        return None
