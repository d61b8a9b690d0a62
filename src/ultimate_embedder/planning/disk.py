"""How much disk a pass and the exports of its collection need."""

from __future__ import annotations

from dataclasses import dataclass

NUMBER_BYTES = 4  # float32


@dataclass(frozen=True)
class DiskNeed:
    """Vectors that a pass will store, and the exports that are written of them later."""

    new_texts: int
    chunks: int
    export_copies: float
    """Size of all exports together, in sizes of the vectors themselves."""

    def size_bytes(self, dim: int) -> int:
        """Bytes for vectors of `dim` numbers."""
        return int((self.new_texts + self.chunks * self.export_copies) * dim * NUMBER_BYTES)
