"""A cluster without Ray and without models: nodes answer after some rounds, or are lost, as a script says."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ultimate_embedder.execution.cluster.facts import NodeFacts, RemoteDeviceFacts, versions
from ultimate_embedder.execution.cluster.node import PassFacts, Progress
from ultimate_embedder.execution.cluster.roster import AnswerLostError, FoundNode, LostError, NodeError
from ultimate_embedder.execution.cluster.units import PassOrder, Unit, UnitResult
from ultimate_embedder.types import DeviceFacts, MemorySnapshot
from ultimate_embedder.vectors import EncoderFacts

DIM = 2


class Clock:
    """Time that passes only when somebody waits."""

    all: ClassVar[list[Clock]] = []

    def __init__(self) -> None:
        self.now = 0.0
        self.all[:] = [self]

    def __call__(self) -> float:
        return self.now


def facts(
    name: str = "cpu", *, has_ceiling: bool = False, dtype: str = "float32", version: dict[str, str] | None = None
) -> NodeFacts:
    memory = MemorySnapshot(name, 1 << 30, 1 << 30, 0, 0, 0, 0, 0, 1 << 30)
    device = RemoteDeviceFacts(
        DeviceFacts(name, "a chip", 1, 1 << 30, 1 << 30), memory, has_ceiling, "all of it", None, dtype
    )
    return NodeFacts("host", {**versions(), **(version or {})}, (device,), 1, 0.0)


def vectors_of(unit: Unit) -> np.ndarray:
    """What a node would compute: a function of the text alone."""
    return np.array([[len(text), sum(map(ord, text)) % 997] for text in unit.texts], np.float32)


@dataclass
class FakeNode:
    """What becomes of a node: `fate` is asked for each unit and gives what happens to it."""

    id: str
    facts: NodeFacts = field(default_factory=facts)
    rounds: int = 1
    """Waits until a unit is done."""
    alive: bool = True
    fate: Callable[[Unit], str] = lambda unit: "done"
    begin: Exception | None = None


class FakeHandle:
    def __init__(self, node: FakeNode, cluster: FakeCluster) -> None:
        self.node, self.cluster = node, cluster
        self.dead = False
        self.units = 0
        self.stopped = False
        self.is_half_open = False
        self.questions = 0

    def describe(self) -> int:
        return self.cluster.ticket(self, lambda: self.node.facts)

    def begin(self, order: PassOrder) -> int:
        def answer() -> PassFacts:
            if self.node.begin is not None:
                raise NodeError(str(self.node.begin)) from self.node.begin
            return PassFacts(EncoderFacts(256, ""), DIM, ())

        return self.cluster.ticket(self, answer)

    def encode(self, unit: Unit) -> int:
        assert not self.dead
        fate = self.node.fate(unit)
        self.cluster.given.append((self.node.id, unit))
        self.is_half_open |= fate == "half open"

        def answer() -> UnitResult:
            if fate == "answer lost":
                raise AnswerLostError("lost on its way")
            if fate == "error":
                raise NodeError("it does not work") from ValueError("it does not work")
            if fate == "dies":
                self.dead = True
                raise LostError("the process was killed")
            self.units += 1
            narrow = (len(unit), len(unit) - 1) if fate == "narrow" else None
            done = unit if fate != "half" else unit.halves(self.cluster.identity)[0]
            return UnitResult(
                unit.id, done.keys, vectors_of(done), np.zeros(len(done), bool), (), len(done), 1.0, too_narrow=narrow
            )

        return self.cluster.ticket(self, answer, self.node.rounds if fate not in ("frozen", "half open") else 10**9)

    def progress(self) -> int:
        """On a connection that is half open the first question gets no answer, and the next one an error at once."""
        self.questions += self.is_half_open
        self.dead |= self.questions > 1
        return self.cluster.ticket(self, lambda: Progress(self.units, ()), 10**9 if self.is_half_open else 0)

    def finish(self) -> int:
        return self.cluster.ticket(self, tuple)

    def stop(self, reason: str) -> None:
        self.stopped = True

    def kill(self) -> None:
        self.dead = True


class FakeCluster:
    def __init__(self, nodes: Sequence[FakeNode], clock: Clock, identity: Any, seed: int = 0) -> None:
        self.nodes = list(nodes)
        self.identity = identity
        self.given: list[tuple[str, Unit]] = []
        self.started: list[FakeHandle] = []
        self._clock = clock
        self._numbers = itertools.count()
        self._random = random.Random(seed)
        self._waiting: dict[int, tuple[FakeHandle, Callable[[], Any], int]] = {}

    def ticket(self, handle: FakeHandle, answer: Callable[[], Any], rounds: int = 0) -> int:
        number = next(self._numbers)
        self._waiting[number] = (handle, answer, rounds)
        return number

    def delay(self, ticket: int, rounds: int) -> None:
        handle, answer, _ = self._waiting[ticket]
        self._waiting[ticket] = (handle, answer, rounds)

    def find_nodes(self) -> list[FoundNode]:
        return [FoundNode(node.id, f"10.0.0.{n}") for n, node in enumerate(self.nodes, 1) if node.alive]

    def start(self, node: FoundNode) -> FakeHandle:
        handle = FakeHandle(next(each for each in self.nodes if each.id == node.id), self)
        self.started.append(handle)
        return handle

    def wait(self, tickets: Sequence[int], timeout_s: float) -> list[int]:
        self._clock.now += 0.1
        ready = []
        for ticket in tickets:
            handle, answer, rounds = self._waiting[ticket]
            self._waiting[ticket] = (handle, answer, rounds - 1)
            if rounds <= 0 or handle.dead or not handle.node.alive:
                ready.append(ticket)
        self._random.shuffle(ready)
        return ready

    def answer(self, ticket: int) -> Any:
        handle, answer, _ = self._waiting[ticket]
        if handle.dead or not handle.node.alive:
            raise LostError("the node is gone")
        return answer()
