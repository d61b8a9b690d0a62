"""Make `torch.device("simulated:0")` exist, and hold the knobs that a real card does not have."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Sequence
from typing import Any

from ultimate_embedder.devices.lost import free_kept
from ultimate_embedder.devices.simulated.build import load_extension
from ultimate_embedder.devices.simulated.collectives import supply_collectives
from ultimate_embedder.errors import UsageError

SIMULATED = "simulated"
FAULTS_VARIABLE = "ULTIMATE_EMBEDDER_SIMULATED_FAULTS"
EXTERNAL_VARIABLE = "ULTIMATE_EMBEDDER_SIMULATED_EXTERNAL"
T4_CAPABILITY = (7, 5)  # what the cards that most people have would say

_controls: SimulatedControls | None = None


def simulate(capacities_bytes: Sequence[int]) -> SimulatedControls:
    """Have one simulated device per capacity. torch takes such a device once a process; later calls resize it."""
    global _controls
    if _controls is not None:
        _controls.resize(capacities_bytes)
        return _controls
    _controls = _register()
    mine, _, rest = os.environ.get(FAULTS_VARIABLE, "").partition("|")
    os.environ[FAULTS_VARIABLE] = rest
    missing = {int(device) for device in re.findall(r"(?:^|,)(\d+)-(?=,|$)", mine)}
    _controls.resize([size for device, size in enumerate(capacities_bytes) if device not in missing])
    _fill_as_told(_controls)
    _break_as_told(_controls, mine)
    return _controls


def environment_for_child() -> dict[str, str]:
    """What a process needs to know that uses the same simulated devices: how much of them this one holds."""
    if _controls is None:
        return {}
    held = [str(_controls.usage(device)["reserved"]) for device in range(_controls.device_count())]
    return {EXTERNAL_VARIABLE: ",".join(held)}


def _fill_as_told(controls: SimulatedControls) -> None:
    """Let devices be as full as the process that has started this one says."""
    for device, held in enumerate(re.findall(r"\d+", os.environ.pop(EXTERNAL_VARIABLE, ""))):
        if device < controls.device_count():
            controls.set_external(device, int(held))


def _break_as_told(controls: SimulatedControls, faults: str) -> None:
    """Let devices of this process die as the environment says, for processes that a test cannot reach otherwise.

    `0@200=MESSAGE` kills device 0 after 200 operations, `0@200!=MESSAGE` all others with it, and `0@200~` lets it hang.
    `0-` takes device 0 out of the machine: those after it have other numbers then. Several are separated by commas;
    what follows a `|` is for the next process.
    """
    for device, operations, kind, message in re.findall(r"(\d+)@(\d+)(=|!=|~)([^,]*)", faults):
        if kind == "~":
            controls.hang(int(device), int(operations))
        else:
            controls.die_after(int(device), int(operations), message, all_devices=kind == "!=")


class SimulatedControls:
    """What one can do to a simulated device and not to a card."""

    def __init__(self, extension: Any) -> None:
        self._extension = extension
        self._context_bytes: dict[int, int] = {}
        self._external_bytes: dict[int, int] = {}

    def resize(self, capacities_bytes: Sequence[int]) -> None:
        """Have these devices, and no others, with nothing on them but us."""
        most = self._extension.most_devices()
        if not 0 < len(capacities_bytes) <= most:
            raise UsageError(f"there can be 1 to {most} simulated devices, not {len(capacities_bytes)}.")
        self._extension.cure()
        free_kept()
        for device in range(self._extension.device_count()):
            self._extension.synchronize(device)
        self._extension.clear_workspaces()
        self._extension.set_device_count(len(capacities_bytes))
        self._extension.empty_cache()
        for device, capacity in enumerate(capacities_bytes):
            self._extension.set_capacity(device, capacity)
            self.set_context(device, 0)
            self.set_external(device, 0)
            self.set_allocation_error(device, "")
            self.set_kernel_error(device, "")
            self.set_capability(device, T4_CAPABILITY)
            self._extension.fail_after(device, -1)
            self._extension.reset_peaks(device)
            self._extension.reset_high_water(device)

    def device_count(self) -> int:
        """How many devices there are."""
        return int(self._extension.device_count())

    def set_capability(self, device: int, capability: tuple[int, int]) -> None:
        """Let the device be of another generation: it decides which attention kernels and number formats there are."""
        self._extension.set_capability(device, *capability)

    def set_external(self, device: int, used_bytes: int) -> None:
        """Let other processes hold this much."""
        self._external_bytes[device] = used_bytes
        self._charge_outside(device)

    def set_context(self, device: int, used_bytes: int) -> None:
        """Let our own process hold this much outside the allocator, as a driver's context does."""
        self._context_bytes[device] = used_bytes
        self._charge_outside(device)

    def context_bytes(self, device: int) -> int:
        """What our own process holds outside the allocator."""
        return self._context_bytes[device]

    def set_allocation_error(self, device: int, text: str) -> None:
        """Let allocations that fail raise a plain error with this text; an empty one restores `OutOfMemoryError`."""
        self._extension.set_allocation_error(device, text)

    def set_kernel_error(self, device: int, text: str) -> None:
        """Let every kernel raise an error with this text, as on a card that torch was not built for; empty: none."""
        self._extension.set_kernel_error(device, text)

    def fail_after(self, device: int, allocations: int) -> None:
        """Let one allocation fail: the next (0), or a later one."""
        self._extension.fail_after(device, allocations)

    def set_workspace(self, device: int, used_bytes: int) -> None:
        """Let matrix products keep this much per stream, from the next first one on."""
        self._extension.set_workspace(device, used_bytes)

    def clear_workspaces(self) -> None:
        """Free what matrix products keep, on all devices."""
        self._extension.clear_workspaces()

    def die_after(self, device: int, operations: int, message: str, *, all_devices: bool = False) -> None:
        """Let a device die of the kernel or copy after so many more; whoever asks it next is told so with `message`.

        `all_devices`: every other device of the process raises it too, as after some errors of a card.
        """
        self._extension.die_after(device, operations, message, all_devices)

    def hang(self, device: int, operations: int = 0) -> None:
        """Let everybody who waits for the device wait until it is released, when it has done so many operations."""
        self._extension.hang(device, operations)

    def release(self, device: int) -> None:
        """Let a device that hangs go on."""
        self._extension.release(device)

    def usage(self, device: int) -> dict[str, int]:
        """The allocator's own books, `high_water` (the most that reserved + external has been) among them."""
        return dict(self._extension.usage(device))

    def _charge_outside(self, device: int) -> None:
        used_bytes = self._external_bytes.get(device, 0) + self._context_bytes.get(device, 0)
        self._extension.set_external(device, used_bytes)

    def kernel_calls(self) -> int:
        """Kernels and copies so far, on all devices."""
        return int(self._extension.kernel_calls())

    def scalar_reads(self) -> int:
        """How often the host has read a single number so far: each time it waits until the device is done."""
        return int(self._extension.scalar_reads())

    def watch_host_memory(self) -> None:
        """From now on notice when the host touches pinned memory while a copy is under way; for tests.

        It takes a handler of SIGSEGV, which is why it is not always on.
        """
        self._extension.watch_host_memory()

    def take_races(self) -> list[str]:
        """Uses of memory, since the last call, that nothing puts in order: which wait is missing."""
        return list(self._extension.take_races())

    def empty_cache_calls(self) -> int:
        """How often all caches were released so far; a card would have waited for all cards each time."""
        return int(self._extension.empty_cache_calls())

    def pinned(self) -> dict[str, int]:
        """Pinned host memory: `operations` (tensors pinned so far), and `bytes` that are pinned now."""
        return dict(self._extension.pinned())

    def traffic(self) -> dict[str, int]:
        """Bytes copied so far between host and devices."""
        return dict(self._extension.traffic())


def _register() -> SimulatedControls:
    import torch
    from torch.utils import backend_registration

    untyped_torch: Any = torch
    backend_registration.rename_privateuse1_backend(SIMULATED)
    extension = load_extension()
    extension.register_hooks()
    untyped_torch._register_device_module(SIMULATED, _device_module(extension))
    backend_registration.generate_methods_for_privateuse1_backend(unsupported_dtype=None)
    supply_collectives(SIMULATED)
    return SimulatedControls(extension)


def _device_module(extension: Any) -> types.ModuleType:
    """`torch.simulated`: the functions of a device module that torch and we ask for, under their usual names."""
    import torch

    module = types.ModuleType(f"torch.{SIMULATED}")
    accelerator = torch.accelerator

    def index(device: Any = None) -> int:
        if device is None:
            return int(accelerator.current_device_index())
        return device if isinstance(device, int) else int(torch.device(device).index or 0)

    def properties(device: Any = None) -> types.SimpleNamespace:
        capacity = extension.usage(index(device))["capacity"]
        return types.SimpleNamespace(name="simulated T4", total_memory=capacity, multi_processor_count=40)

    def memory_stats_as_nested_dict(device: Any = None) -> dict[str, dict[str, dict[str, int]]]:
        usage = extension.usage(index(device))
        return {
            f"{kind}_bytes": {"all": {"current": usage[kind], "peak": usage[f"peak_{kind}"]}}
            for kind in ("allocated", "reserved")
        }

    def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
        capacity = extension.usage(index(device))["capacity"]
        extension.set_limit(index(device), int(capacity * fraction))

    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device_count": extension.device_count,
        "current_device": accelerator.current_device_index,
        "set_device": accelerator.set_device_index,
        "device": lambda device: accelerator.device_index(index(device)),
        "synchronize": lambda device=None: accelerator.synchronize(index(device)),
        "current_stream": accelerator.current_stream,
        "Stream": lambda device=None: torch.Stream(device=torch.device(SIMULATED, index(device))),
        "stream": lambda stream: stream,  # is itself what it can be used in
        "Event": lambda enable_timing=False, blocking=False: torch.Event(
            device=SIMULATED, enable_timing=enable_timing, blocking=blocking
        ),
        "get_device_properties": properties,
        "get_device_name": lambda device=None: properties(device).name,
        "get_device_capability": lambda device=None: tuple(extension.capability(index(device))),
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16, torch.float32],
        "mem_get_info": lambda device=None: accelerator.get_memory_info(index(device)),
        "memory_stats_as_nested_dict": memory_stats_as_nested_dict,
        "memory_allocated": lambda device=None: accelerator.memory_allocated(index(device)),
        "memory_reserved": lambda device=None: accelerator.memory_reserved(index(device)),
        "max_memory_allocated": lambda device=None: accelerator.max_memory_allocated(index(device)),
        "max_memory_reserved": lambda device=None: accelerator.max_memory_reserved(index(device)),
        "reset_peak_memory_stats": lambda device=None: extension.reset_peaks(index(device)),
        "empty_cache": extension.empty_cache,
        "clear_workspaces": extension.clear_workspaces,  # no device module of torch has it under a public name
        "set_per_process_memory_fraction": set_per_process_memory_fraction,
        "manual_seed": lambda seed: torch.default_generator.manual_seed(seed),
        "manual_seed_all": lambda seed: torch.default_generator.manual_seed(seed),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module
