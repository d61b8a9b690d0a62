"""NVIDIA cards. The only file that knows them by name."""

from __future__ import annotations

import os
import warnings

from ultimate_embedder.devices.accelerator import Vendor
from ultimate_embedder.types import Capability

NVIDIA = "cuda"
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
# segments that grow instead of new ones beside them: less is reserved and not used
ALLOCATOR_SETTING = "expandable_segments:True"
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def count_nvidia() -> int:
    """How many cards torch sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def nvidia_build() -> str | None:
    """What this torch was built for; None if it was built for CPUs only."""
    import torch

    if torch.version.hip:
        return f"for AMD, ROCm {torch.version.hip}"
    return f"for NVIDIA, CUDA {torch.version.cuda}" if torch.version.cuda else None


def nvidia_cards() -> list[tuple[str, str, Capability, int, int]]:
    """Device, name, capability, total and free bytes of the cards that torch sees."""
    import torch

    found = []
    for index in range(count_nvidia()):
        free, total = torch.cuda.mem_get_info(index)
        name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
        found.append((f"{NVIDIA}:{index}", name, capability, total, free))
    return found


def prepare_nvidia() -> None:
    """Settings of torch for all cards, whether or not they have been used in this process before."""
    import torch

    # it makes a plan for every new shape, up to half a second each, and batches have new shapes all the time. Not put
    # back: nothing else in this process needs it
    torch.backends.cuda.enable_cudnn_sdp(False)
    if any(os.environ.get(name) for name in ALLOCATOR_VARIABLES):  # the user has chosen
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # its successor does not exist in all versions that we allow
        # by a call: the variable is read only once, which may have been when a notebook imported torch
        torch.cuda.memory._set_allocator_settings(ALLOCATOR_SETTING)


def nvidia_vendor() -> Vendor:
    """What NVIDIA's libraries tell and do, where they are installed."""
    return Vendor(_context_bytes, _clear_workspaces, _kernels, _hardware)


def _kernels() -> str:
    import torch

    return f"torch {torch.__version__}: {' '.join(torch.cuda.get_arch_list())}"


def _hardware(index: int) -> str:
    import torch

    return str(torch.cuda.get_device_name(index))


def _context_bytes(index: int, reserved_bytes: int) -> int | None:
    """Our process's memory on a card, less the allocator's: the context, kernels and handles of libraries."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(_uuid(index))
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:  # no permission, or a driver that does not tell
        return None
    used = {process.pid: process.usedGpuMemory for process in processes}
    # in a container the numbers of processes are those of the host: a single process can only be ours
    mine = used.get(os.getpid(), next(iter(used.values())) if len(used) == 1 else None)
    return None if mine is None else max(0, mine - reserved_bytes)


def _uuid(index: int) -> str:
    """The name by which the management library knows a card: its own numbers ignore CUDA_VISIBLE_DEVICES."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def _clear_workspaces() -> None:
    """Free the workspaces of cuBLAS: 8 MiB per thread and stream (32 on Hopper), allocated at the first product."""
    import torch

    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # private: without it they stay, and are reported
    if clear is not None:
        clear()
