"""What is asked of the child, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ultimate_embedder.types import Capability

Job = Literal["instruction", "torch", "forward"]


@dataclass(frozen=True)
class Trial:
    """A CPU feature by its name, the import of torch, or a forward: runtime, device and precision."""

    job: Job
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a trial gave, or why it failed; `died` if it took the process with it."""

    value: Any = None
    failure: str | None = None
    died: bool = False


class TrialError(Exception):
    """A trial that ran and did not give what it should; the message says all."""


@dataclass(frozen=True)
class Forward:
    """How long the fastest of a few forwards took."""

    milliseconds: float


@dataclass(frozen=True)
class CardFacts:
    """A card that torch sees."""

    device: str
    name: str
    capability: Capability
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class TorchFacts:
    """What torch says about itself and the machine."""

    version: str
    build: str
    has_card_support: bool
    cpu_kernels: str
    threads: int
    card_kernels: str
    cards: tuple[CardFacts, ...]
    warnings: tuple[str, ...]
