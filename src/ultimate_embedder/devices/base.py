"""What every device can do, whatever it is."""

from __future__ import annotations

from typing import Protocol

from ultimate_embedder.types import MemorySnapshot


class Device(Protocol):
    """One place where a model can run."""

    name: str
    """As torch spells it: `cpu`, or type and index."""

    def snapshot(self) -> MemorySnapshot:
        """Memory at this moment."""
        ...

    def dtype(self, precision: str) -> str:
        """The number format that `precision` (auto, fp32, fp16) means here."""
        ...

    def budget_tokens(self) -> int:
        """How many padded tokens one batch may have."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done what it was told."""
        ...

    def release_cache(self) -> None:
        """Give unused memory back to whoever else wants it."""
        ...
