"""What a node says of itself, and whether it may take part."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from ultimate_embedder._version import __version__
from ultimate_embedder.devices import Device
from ultimate_embedder.types import Capability, DeviceFacts, MemorySnapshot

MUST_AGREE = ("python", "ultimate-embedder", "ray")
"""What makes a node speak another language, or compute other vectors, if it differs."""
SHOULD_AGREE = ("torch", "transformers", "sentence-transformers")
"""What may change the last digits of a vector."""


@dataclass(frozen=True)
class RemoteDeviceFacts:
    """A device of a node."""

    facts: DeviceFacts
    memory: MemorySnapshot
    has_ceiling: bool
    ceiling_reason: str
    capability: Capability | None
    dtype: str
    """The number format of this run there."""
    has_vnni: bool = False


@dataclass(frozen=True)
class NodeFacts:
    """A node as it describes itself."""

    host: str
    versions: Mapping[str, str]
    devices: tuple[RemoteDeviceFacts, ...]
    cores: int
    clock: float
    """Its time when it said so: seconds since 1970."""

    @property
    def dtype(self) -> str:
        """The number format of its first device."""
        return self.devices[0].dtype

    @property
    def way(self) -> str:
        """The number format, and how int8 products are computed there: nodes of a run must agree in it."""
        if self.dtype != "int8":
            return self.dtype
        return "int8 with VNNI" if self.devices[0].has_vnni else "int8 without VNNI"

    @property
    def has_cards(self) -> bool:
        """Whether it computes on cards."""
        return self.devices[0].has_ceiling


def here(devices: Sequence[Device], precision: str, cores: int, clock: float) -> NodeFacts:
    """What there is to say of this process."""
    return NodeFacts(
        host=socket.gethostname(),
        versions=versions(),
        devices=tuple(_describe(device, precision, cores) for device in devices),
        cores=cores,
        clock=clock,
    )


def _describe(device: Device, precision: str, cores: int) -> RemoteDeviceFacts:
    now = device.hold_ceiling() if device.has_ceiling else device.snapshot()
    workers = device.workers if device.has_ceiling else cores
    return RemoteDeviceFacts(
        DeviceFacts(device.name, device.hardware, workers, now.total_bytes, now.ceiling_bytes),
        now,
        device.has_ceiling,
        device.ceiling_reason,
        device.capability,
        device.dtype(precision),
        device.has_vnni,
    )


def versions() -> dict[str, str]:
    """Of Python and of the packages that vectors depend on."""
    found = {"python": platform.python_version(), "ultimate-embedder": __version__}
    for package in ("ray", *SHOULD_AGREE):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def differences(ours: Mapping[str, str], theirs: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """What differs, in words."""
    return [
        f"{name} is {theirs.get(name, 'none')} there and {ours.get(name, 'none')} here"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]
