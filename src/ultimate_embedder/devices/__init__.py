"""What the program computes on."""

from ultimate_embedder.devices.base import Device, Fetch, Mark
from ultimate_embedder.devices.cards import Card, find_card, peak_half_flops
from ultimate_embedder.devices.clock import DeviceClock
from ultimate_embedder.devices.cpu import CPU_BUDGET_TOKENS, CpuDevice
from ultimate_embedder.devices.described import DescribedDevice, describe_cpu, describe_device, describe_gpus
from ultimate_embedder.devices.driver_errors import in_one_line
from ultimate_embedder.devices.group import DeviceGroup
from ultimate_embedder.devices.leases import Lease, Leases, Resident
from ultimate_embedder.devices.limits import MemoryLimits
from ultimate_embedder.devices.lost import is_gone, works_in_time
from ultimate_embedder.devices.nvidia import ALLOCATOR_VARIABLES, VISIBLE_VARIABLE
from ultimate_embedder.devices.open import DEVICE_WORDS, open_devices
from ultimate_embedder.devices.simulated import environment_for_child
from ultimate_embedder.devices.trials import (
    CHILD,
    FEATURES,
    TIMEOUT_S,
    Bf16Trial,
    CardFacts,
    Forward,
    Outcome,
    TorchFacts,
    Trial,
    Trials,
    try_bf16,
)

__all__ = [
    "ALLOCATOR_VARIABLES",
    "CHILD",
    "CPU_BUDGET_TOKENS",
    "DEVICE_WORDS",
    "FEATURES",
    "TIMEOUT_S",
    "VISIBLE_VARIABLE",
    "Bf16Trial",
    "Card",
    "CardFacts",
    "CpuDevice",
    "DescribedDevice",
    "Device",
    "DeviceClock",
    "DeviceGroup",
    "Fetch",
    "Forward",
    "Lease",
    "Leases",
    "Mark",
    "MemoryLimits",
    "Outcome",
    "Resident",
    "TorchFacts",
    "Trial",
    "Trials",
    "describe_cpu",
    "describe_device",
    "describe_gpus",
    "environment_for_child",
    "find_card",
    "in_one_line",
    "is_gone",
    "open_devices",
    "peak_half_flops",
    "try_bf16",
    "works_in_time",
]
