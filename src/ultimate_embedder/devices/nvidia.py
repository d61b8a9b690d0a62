"""NVIDIA cards. The only file that knows them by name."""

from __future__ import annotations

import os

from ultimate_embedder.devices.accelerator import AcceleratorDevice, MemoryLimits
from ultimate_embedder.devices.base import Device
from ultimate_embedder.errors import UsageError

NVIDIA = "cuda"
# segments that grow instead of new ones beside them: less is reserved and not used
ALLOCATOR_SETTING = "expandable_segments:True"
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def nvidia_is_available() -> bool:
    """Whether torch can use at least one card."""
    import torch

    return torch.cuda.is_available()


def open_nvidia(limits: MemoryLimits) -> list[Device]:
    """Every card that torch sees."""
    if not nvidia_is_available():
        raise UsageError("--devices cuda: torch sees no CUDA card here. Use --devices cpu, or simulated:2x15GiB.")
    import torch

    if not any(os.environ.get(name) for name in ALLOCATOR_VARIABLES):  # else the user has chosen
        os.environ[ALLOCATOR_VARIABLES[0]] = ALLOCATOR_SETTING
    return [AcceleratorDevice(NVIDIA, index, limits, _clear_workspaces) for index in range(torch.cuda.device_count())]


def _clear_workspaces() -> None:
    """Free the workspaces of cuBLAS: 8 MiB per thread and stream (32 on Hopper), allocated at the first product."""
    import torch

    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # private: without it they stay, and are reported
    if clear is not None:
        clear()
