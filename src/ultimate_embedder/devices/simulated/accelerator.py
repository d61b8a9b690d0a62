"""Make `torch.device("simulated:0")` exist, and hold the knobs that a real card does not have."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from ultimate_embedder.devices.simulated.build import load_extension
from ultimate_embedder.devices.simulated.collectives import supply_collectives
from ultimate_embedder.errors import UsageError

SIMULATED = "simulated"
T4_CAPABILITY = (7, 5)  # what the cards that most people have would say

_controls: SimulatedControls | None = None


def simulate(capacities_bytes: Sequence[int]) -> SimulatedControls:
    """Have one simulated device per capacity. torch takes such a device once a process; later calls resize it."""
    global _controls
    if _controls is None:
        _controls = _register()
    _controls.resize(capacities_bytes)
    return _controls


class SimulatedControls:
    """What one can do to a simulated device and not to a card."""

    def __init__(self, extension: Any) -> None:
        self._extension = extension

    def resize(self, capacities_bytes: Sequence[int]) -> None:
        """Have these devices, and no others, with nothing on them but us."""
        most = self._extension.most_devices()
        if not 0 < len(capacities_bytes) <= most:
            raise UsageError(f"there can be 1 to {most} simulated devices, not {len(capacities_bytes)}.")
        for device in range(self._extension.device_count()):
            self._extension.synchronize(device)
        self._extension.clear_workspaces()
        self._extension.set_device_count(len(capacities_bytes))
        self._extension.empty_cache()
        for device, capacity in enumerate(capacities_bytes):
            self._extension.set_capacity(device, capacity)
            self._extension.set_external(device, 0)
            self._extension.fail_after(device, -1)
            self._extension.reset_peaks(device)
            self._extension.reset_high_water(device)

    def set_external(self, device: int, used_bytes: int) -> None:
        """Let other processes hold this much."""
        self._extension.set_external(device, used_bytes)

    def fail_after(self, device: int, allocations: int) -> None:
        """Let one allocation fail: the next (0), or a later one."""
        self._extension.fail_after(device, allocations)

    def set_workspace(self, device: int, used_bytes: int) -> None:
        """Let matrix products keep this much per stream, from the next first one on."""
        self._extension.set_workspace(device, used_bytes)

    def clear_workspaces(self) -> None:
        """Free what matrix products keep, on all devices."""
        self._extension.clear_workspaces()

    def usage(self, device: int) -> dict[str, int]:
        """The allocator's own books, `high_water` (the most that reserved + external has been) among them."""
        return dict(self._extension.usage(device))

    def watch_host_memory(self) -> None:
        """From now on notice when the host touches pinned memory while a copy is under way; for tests.

        It takes a handler of SIGSEGV, which is why it is not always on.
        """
        self._extension.watch_host_memory()

    def take_races(self) -> list[str]:
        """Uses of memory, since the last call, that nothing puts in order: which wait is missing."""
        return list(self._extension.take_races())

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
        "get_device_capability": lambda device=None: T4_CAPABILITY,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16, torch.float32],
        "mem_get_info": lambda device=None: accelerator.get_memory_info(index(device)),
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
