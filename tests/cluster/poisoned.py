"""A node whose process ends when it is given a certain text, as a broken driver or an out-of-memory killer would."""

from __future__ import annotations

import os

from ultimate_embedder.execution.cluster.node import Node
from ultimate_embedder.execution.cluster.units import Unit, UnitResult

POISON = "this text ends the process"


class PoisonedNode(Node):
    """Dies of one text."""

    def encode(self, unit: Unit) -> UnitResult:
        if any(POISON in text for text in unit.texts):
            os._exit(9)
        return super().encode(unit)
