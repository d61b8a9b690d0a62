"""The nodes that take part: found, started, checked, lost, started again. It knows nothing of Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ultimate_embedder.errors import UsageError
from ultimate_embedder.events import Emit, Mitigated, NodeJoined, NodeRefused, Warned
from ultimate_embedder.execution.cluster.facts import MUST_AGREE, SHOULD_AGREE, NodeFacts, differences
from ultimate_embedder.execution.cluster.units import PassOrder, Unit
from ultimate_embedder.execution.ladder import NODE_LOST

Ticket = Any
"""Stands for an answer that is under way; can be a key of a dictionary."""

LOOK_EVERY_S = 1.0  # for nodes that have joined
REST_S = 1.0  # before a node is tried again; longer each time
MOST_FAILURES = 4  # of a node in a row, without a unit in between: then it is left alone
DESCRIBE_S = 300.0  # to import torch and open the devices, on a slow disk


class LostError(Exception):
    """The process on a node is gone, or the node is; the message says how."""


class AnswerLostError(Exception):
    """An answer was lost on its way; whoever gave it is still there."""


class NodeError(Exception):
    """What was asked of a node has raised an error there: its cause."""


@dataclass(frozen=True)
class FoundNode:
    """A node of the cluster with room for us."""

    id: str
    address: str


class Handle(Protocol):
    """Our process on a node. Every method but the last two gives a ticket for the answer."""

    def describe(self) -> Ticket:
        """For `NodeFacts`."""
        ...

    def begin(self, order: PassOrder) -> Ticket:
        """For `PassFacts`."""
        ...

    def encode(self, unit: Unit) -> Ticket:
        """For a `UnitResult`."""
        ...

    def progress(self) -> Ticket:
        """For `Progress`, at once."""
        ...

    def finish(self) -> Ticket:
        """For the events since it was last asked, when the pass is over and its devices are left."""
        ...

    def stop(self, reason: str) -> None:
        """Finish what is under way, and no more."""
        ...

    def kill(self) -> None:
        """End the process at once; it may be gone already."""
        ...


class Cluster(Protocol):
    """Other machines, as far as this program uses them."""

    def find_nodes(self) -> Sequence[FoundNode]:
        """The nodes that could take a process of ours now, or have one."""
        ...

    def start(self, node: FoundNode) -> Handle:
        """A process of ours on a node; what goes wrong is told by its first answer."""
        ...

    def wait(self, tickets: Sequence[Ticket], timeout_s: float) -> Sequence[Ticket]:
        """Those whose answers are there; some, as soon as there are any, or none when the time is over."""
        ...

    def answer(self, ticket: Ticket) -> Any:
        """An answer that is there; raises `LostError`, `AnswerLostError` or `NodeError`."""
        ...


@dataclass
class Member:
    """A node that takes part, or is about to."""

    name: str
    node: FoundNode
    handle: Handle
    started: float
    describing: Ticket | None = None
    facts: NodeFacts | None = None
    clock_ahead_s: float = 0.0
    """How much its clock is ahead of ours, and the answer was under way."""
    order: PassOrder | None = None
    """The pass that it is ready for, or is getting ready for."""
    beginning: Ticket | None = None
    given: dict[Ticket, Unit] = field(default_factory=dict)
    asked: list[Ticket] = field(default_factory=list)
    """For its progress; several where it has not answered at once."""
    asked_at: float = 0.0
    """When it has last answered, or was first asked since then."""
    asked_again_at: float = 0.0
    batches: int = 0
    moved: float = 0.0
    """When it has last done something that shows."""

    @property
    def is_ready(self) -> bool:
        """Whether units can be given to it."""
        return self.order is not None and self.beginning is None

    @property
    def tickets(self) -> list[Ticket]:
        """All that is under way."""
        waiting = [self.describing, self.beginning]
        return [*self.given, *self.asked, *(ticket for ticket in waiting if ticket is not None)]


@dataclass
class _History:
    """What became of a node so far."""

    name: str
    failures: int = 0
    rests_until: float = 0.0
    refused: str | None = None


class Roster:
    """Which nodes are at work. Nodes are numbered in the order in which they are found, and keep their number."""

    def __init__(
        self,
        cluster: Cluster,
        ours: Mapping[str, str],
        emit: Emit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ours` are the versions of this process."""
        self.cluster = cluster
        self.members: dict[str, Member] = {}
        """By name, those whose process is alive as far as we know."""
        self._ours = ours
        self._emit = emit
        self._clock = clock
        self._histories: dict[str, _History] = {}
        self._looked = float("-inf")
        self._told: set[str] = set()
        self.collection: str | None = None
        """What is being embedded, for what is told of nodes."""
        self.standard: NodeFacts | None = None
        """What all nodes must be like; None before the first ones have been admitted."""

    @property
    def admitted(self) -> list[Member]:
        """Those that may work."""
        return [member for member in self.members.values() if member.facts is not None]

    @property
    def refusals(self) -> dict[str, str]:
        """Nodes that may not work, and why."""
        return {each.name: each.refused for each in self._histories.values() if each.refused is not None}

    def look(self) -> None:
        """Start a process on each node that has none and may have one; every second at most."""
        now = self._clock()
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        taken = {member.node.id for member in self.members.values()}
        for node in self.cluster.find_nodes():
            history = self._histories.setdefault(node.id, _History(f"node-{len(self._histories) + 1}"))
            if node.id in taken or history.refused is not None or history.rests_until > now:
                continue
            member = Member(history.name, node, self.cluster.start(node), started=now, moved=now)
            member.describing = member.handle.describe()
            self.members[member.name] = member

    def take_description(self, member: Member) -> None:
        """Admit a node that has described itself, or refuse it."""
        ticket, member.describing = member.describing, None
        try:
            facts: NodeFacts = self.cluster.answer(ticket)
        except (LostError, AnswerLostError) as error:
            self.lose(member, str(error))
            return
        except NodeError as error:
            self.refuse(member, str(error))
            return
        if problem := self._misfit(facts):
            self.refuse(member, problem)
            return
        member.facts = facts
        member.clock_ahead_s = facts.clock - time.time()
        member.moved = self._clock()
        if self.standard is not None:
            self.admit(member)

    def admit(self, member: Member) -> None:
        """Tell of a node that takes part from now on; of one whose process was started again that was told before."""
        assert member.facts is not None
        facts = member.facts
        if member.name in self._told:
            return
        self._told.add(member.name)
        self._emit(
            NodeJoined(
                node=member.name,
                node_id=member.node.id,
                address=member.node.address,
                host=facts.host,
                devices=tuple(each.facts for each in facts.devices),
                cores=facts.cores,
                dtype=facts.dtype,
                versions=dict(facts.versions),
                differs=tuple(differences(self._ours, facts.versions, SHOULD_AGREE)),
            )
        )

    def settle(self) -> NodeFacts:
        """Decide what all nodes must be like, by those that are there; raises if they do not agree."""
        described = self.admitted
        if any(each.facts is not None and each.facts.has_cards for each in described):
            for member in described:
                if member.facts is not None and not member.facts.has_cards:
                    self.refuse(member, "it has no card, and other nodes have")
        left = self.admitted
        formats = {member.facts.way: member.name for member in left if member.facts is not None}
        if len(formats) > 1:
            found = ", ".join(f"{name} computes in {way}" for way, name in formats.items())
            raise UsageError(
                f"the nodes of the cluster have different precisions ({found}), and the vectors of a pass must have "
                "one. Give --precision fp16 or --precision fp32."
            )
        assert left[0].facts is not None
        self.standard = left[0].facts
        for member in left:
            self.admit(member)
        return self.standard

    def refuse(self, member: Member, reason: str) -> None:
        """Do without a node for the rest of the run."""
        self._histories[member.node.id].refused = reason
        self._drop(member)
        self._emit(NodeRefused(node=member.name, address=member.node.address, reason=reason))

    def lose(self, member: Member, reason: str, *, suspect: bool = False) -> list[Unit]:
        """The process of a node is gone, or of no use; gives the units that others have to do.

        With `suspect` a text may have killed it: that says nothing against the node.
        """
        units = list(member.given.values())
        history = self._histories[member.node.id]
        history.failures += not suspect
        history.rests_until = self._clock() + REST_S * max(1, history.failures)
        self._drop(member)
        self._tell_lost(member, reason, units)
        if history.failures >= MOST_FAILURES:
            history.refused = f"its process was lost {history.failures} times in a row: {reason}"
            self._emit(NodeRefused(node=member.name, address=member.node.address, reason=history.refused))
        return units

    def _tell_lost(self, member: Member, reason: str, units: Sequence[Unit]) -> None:
        texts = sum(len(unit) for unit in units)
        details = {"device": member.name, "reason": reason, "rows": texts, "units": len(units)}
        self._emit(Mitigated(collection=self.collection, kind=NODE_LOST.kind, details=details))
        left = f"; its {texts} texts go to other nodes" if texts else ""
        self._emit(Warned(collection=self.collection, message=f"{member.name} was lost ({reason}){left}"))

    def worked(self, member: Member) -> None:
        """A node has done a unit: what went wrong before does not count any more."""
        self._histories[member.node.id].failures = 0
        member.moved = self._clock()

    def close(self) -> None:
        """End all processes."""
        for member in list(self.members.values()):
            self._drop(member)

    def _drop(self, member: Member) -> None:
        member.handle.kill()  # one that does not answer must not go on beside its successor
        self.members.pop(member.name, None)

    def _misfit(self, facts: NodeFacts) -> str | None:
        """Why a node may not take part."""
        if wrong := differences(self._ours, facts.versions, MUST_AGREE):
            return f"{'; '.join(wrong)}. Install the same version on all machines"
        if self.standard is None:
            return None
        if self.standard.has_cards and not facts.has_cards:
            return "it has no card, and the other nodes have"
        if facts.has_cards and not self.standard.has_cards:
            return "it has cards, and the run has begun on CPUs: its vectors would differ. Start the run again with it"
        if facts.way != self.standard.way:
            return f"it computes in {facts.way}, the other nodes in {self.standard.way}. Give --precision"
        return None
