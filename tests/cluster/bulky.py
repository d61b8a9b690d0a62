"""A node whose answers are large enough for Ray's object store; small ones travel within the reply of a call."""

from __future__ import annotations

from dataclasses import dataclass

from ultimate_embedder.execution.cluster.node import Node
from ultimate_embedder.execution.cluster.units import Unit, UnitResult

BALLAST_BYTES = 1 << 20  # Ray sends up to 100 KiB with the reply


@dataclass(frozen=True)
class BulkyResult(UnitResult):
    """A result with something heavy in it."""

    ballast: bytes = b""


class BulkyNode(Node):
    """Gives large results, whatever the model."""

    def encode(self, unit: Unit) -> UnitResult:
        return BulkyResult(**vars(super().encode(unit)), ballast=bytes(BALLAST_BYTES))
