"""The seam between what is to be done and where: an executor is handed steps and gives results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ultimate_embedder.execution.checking import OverflowWatch
from ultimate_embedder.execution.pass_events import PassEvents
from ultimate_embedder.planning import DeviceRoom, MemoryNeed, PassPlan, Rows, Step, StepResult
from ultimate_embedder.vectors import TokenStore


class TextSource(Protocol):
    """The texts of a pass that have no vector yet."""

    def count(self, rows: Rows) -> int:
        """How many of these rows have a text to encode."""
        ...

    def read(self, rows: Rows) -> Iterator[tuple[np.ndarray, list[str]] | None]:
        """Yield keys and texts of these rows, as many at a time as are tokenised together.

        None where there are none now, and more may come.
        """
        ...


class VectorSink(Protocol):
    """Where vectors go."""

    def append(self, keys: np.ndarray, vectors: Any, overlong: np.ndarray) -> None:
        """Take the vectors of some texts, or `SparseVectors`; `overlong` marks texts beyond the token limit."""
        ...

    def seal(self) -> None:
        """Make everything that was appended durable."""
        ...


@dataclass(frozen=True)
class PassWork:
    """What a pass works on: texts in, vectors and events out."""

    plan: PassPlan
    texts: TextSource
    sink: VectorSink
    events: PassEvents
    tokens: TokenStore | None = None
    """Token ids that passes with the same tokenizer share."""
    overflow: OverflowWatch | None = None
    """Counts unusable vectors, if the pass is in fp16; it stops when there are too many."""


class Executor(Protocol):
    """Carries out steps, here or elsewhere."""

    shares_tokens: bool
    """Whether passes with the same tokenizer can share token ids on this machine's disk."""

    @property
    def auto_mode(self) -> tuple[str, str] | None:
        """The mode that `auto` stands for, and why; None if that depends on the memory of devices."""
        ...

    def rooms(self) -> list[DeviceRoom]:
        """The devices, or nodes, and the room that they have now."""
        ...

    def devices_at(self, places: Sequence[str]) -> tuple[str, ...]:
        """The devices that the names of rooms stand for."""
        ...

    def memory_need(self, plan: PassPlan) -> MemoryNeed:
        """What a model takes on a device, predicted."""
        ...

    def execute(self, step: Step, works: Mapping[int, PassWork]) -> StepResult:
        """Run the tasks of a step to their end, or until the run is stopped; `works` are by number of the pass."""
        ...
