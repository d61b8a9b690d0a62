"""The executor of a cluster: units of texts go to nodes, vectors come back to the durable store of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.config import RunConfig
from ultimate_embedder.devices import Device
from ultimate_embedder.errors import NoNodeError
from ultimate_embedder.events import BatchEncoded, Emit, Event, Warned
from ultimate_embedder.execution.cluster.dispatch import Dispatcher, Job, Patience
from ultimate_embedder.execution.cluster.facts import NodeFacts
from ultimate_embedder.execution.cluster.remote import devices_of
from ultimate_embedder.execution.cluster.renamed import of_node
from ultimate_embedder.execution.cluster.roster import DESCRIBE_S, Member, Roster
from ultimate_embedder.execution.cluster.shared_output import adopt_leftovers, adopt_unit
from ultimate_embedder.execution.cluster.units import PassOrder, Shipper, Unit, UnitResult, cut_units
from ultimate_embedder.execution.executor import PassWork
from ultimate_embedder.execution.ladder import ANSWER_LOST, TEXT_GIVEN_UP, UNIT_SPLIT
from ultimate_embedder.execution.local import memory_need
from ultimate_embedder.execution.writer import VectorWriter
from ultimate_embedder.planning import (
    CLUSTER_MODE,
    DeviceRoom,
    MemoryNeed,
    PassPlan,
    Step,
    StepResult,
    Task,
    unit_texts,
)
from ultimate_embedder.session import Session
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import device_on
from ultimate_embedder.vectors import VectorStore

SETTLE_S = 0.2
OTHERS_S = 60.0  # that nodes may start later than the first one to be waited for; later ones join the run


def wait_for_nodes(roster: Roster, stop: StopSwitch, node_wait_s: float) -> list[tuple[str, NodeFacts]]:
    """Wait until the nodes that are there have described themselves; gives name and facts of each.

    Raises `NoNodeError` when there is none in time.
    """
    began = time.monotonic()
    first = float("inf")  # when the first node has described itself
    while True:
        stop.check()
        roster.look()
        describing = [member for member in roster.members.values() if member.describing is not None]
        first = min(first, time.monotonic()) if roster.admitted else float("inf")
        if describing and time.monotonic() - first < OTHERS_S and time.monotonic() - began < node_wait_s + DESCRIBE_S:
            for ticket in roster.cluster.wait([member.describing for member in describing], SETTLE_S):
                roster.take_description(next(member for member in describing if member.describing == ticket))
        elif roster.admitted:
            roster.settle()
            return [(each.name, each.facts) for each in roster.admitted if each.facts is not None]
        elif time.monotonic() - began > node_wait_s or _all_refused(roster):
            refused = "".join(f" {name} was refused: {why}." for name, why in roster.refusals.items())
            raise NoNodeError(
                f"the cluster has no node that can take part.{refused} Nodes need a free CPU (ray status shows them), "
                "Python, Ray and ultimate-embedder in the versions of this machine. --ray-wait waits longer for them."
            )
        else:
            time.sleep(SETTLE_S)


def _all_refused(roster: Roster) -> bool:
    return bool(roster.refusals) and len(roster.refusals) == len(roster.cluster.find_nodes())


@dataclass(frozen=True)
class ClusterOptions:
    """How a cluster is used."""

    patience: Patience
    shared_output: bool = False
    ship: Callable[[PassPlan], Shipper] | None = None
    """Gives what sends a model to nodes that have it not; None if they must have it."""


class ClusterEngine:
    """The nodes of a cluster."""

    def __init__(
        self,
        roster: Roster,
        options: ClusterOptions,
        make_session: Callable[[Sequence[Device]], Session],
        config: RunConfig,
        stop: StopSwitch,
    ) -> None:
        """Waits for nodes: their devices are those of the session, and their number format that of the passes."""
        self._roster = roster
        self._options = options
        nodes = wait_for_nodes(roster, stop, config.ray_wait_s)
        self.session = make_session([device for name, facts in nodes for device in devices_of(name, facts)])

    def executor_for(self, collection: str) -> ClusterExecutor:
        """All nodes."""
        return ClusterExecutor(self.session, self._roster, self._options, collection)


class ClusterExecutor:
    """Runs the steps of one collection on the nodes of a roster."""

    shares_tokens = False  # nodes tokenise: token ids would have to travel

    def __init__(self, session: Session, roster: Roster, options: ClusterOptions, collection: str) -> None:
        self._session = session
        self._roster = roster
        self._options = options
        self._on_cpu = collection in session.config.force_cpu
        self._orders: dict[tuple[int, str], PassOrder] = {}

    @property
    def auto_mode(self) -> tuple[str, str] | None:
        """What `auto` means, and why."""
        return CLUSTER_MODE

    def rooms(self) -> list[DeviceRoom]:
        """The nodes that take part, each with the room of its largest device."""
        return [
            DeviceRoom(member.name, True, max(each.memory.usable_bytes for each in member.facts.devices))
            for member in self._roster.admitted
            if member.facts is not None
        ]

    def devices_at(self, places: Sequence[str]) -> tuple[str, ...]:
        """The devices of some nodes."""
        found: list[str] = []
        for member in self._roster.admitted:
            if member.facts is not None and member.name in places:
                found += [device_on(member.name, each.facts.name) for each in member.facts.devices]
        return tuple(found) or tuple(places)

    def memory_need(self, plan: PassPlan) -> MemoryNeed:
        """What a model takes on a device, predicted."""
        capabilities = [device.capability for device in self._session.devices if device.capability is not None]
        return memory_need(self._session.load(plan), min(capabilities, default=None))

    def execute(self, step: Step, works: Mapping[int, PassWork]) -> StepResult:
        """Run the tasks of a step at the same time, each first on the nodes that it was given."""
        tasks = [task for task in step.tasks if works[task.plan.number].texts.count(task.rows)]
        if not tasks or self._session.stop.reason is not None:
            return StepResult()
        started = time.perf_counter()
        self._roster.collection = works[tasks[0].plan.number].events.collection
        texts = sum(works[task.plan.number].texts.count(task.rows) for task in tasks)
        with ExitStack() as stack:
            jobs = [self._job(task, works[task.plan.number], stack, alone=len(tasks) == 1) for task in tasks]
            Dispatcher(jobs, self._roster, self._session.stop, self._options.patience).run()
        seconds = time.perf_counter() - started
        return StepResult(texts=texts, working_seconds=seconds, seconds={task.plan.number: seconds for task in tasks})

    def _job(self, task: Task, work: PassWork, stack: ExitStack, *, alone: bool) -> Job:
        desk = _Desk(work, self._session.emit, stack, shared=self._options.shared_output)
        names = {member.name for member in self._roster.admitted}
        return Job(
            order=self._order(task, work),
            units=cut_units(work.texts, task.rows, task.plan, unit_texts(work.texts.count(task.rows), len(names))),
            take=desk.take,
            reject=desk.reject,
            tell=desk.tell,
            split=desk.split,
            lose_answer=desk.lose_answer,
            give_up=desk.give_up,
            nodes=None if alone else frozenset(task.place.devices) & names,
        )

    def _order(self, task: Task, work: PassWork) -> PassOrder:
        """What nodes are told of the pass; the same for all its turns, so that they need not begin it again."""
        plan = task.plan
        key = (plan.number, plan.identity.dtype)
        if key not in self._orders:
            sink = work.sink
            folder = str(sink.folder.absolute()) if isinstance(sink, VectorStore) else None
            watch = work.overflow
            self._orders[key] = PassOrder(
                plan=plan,
                source=self._source(plan),
                collection=work.events.collection,
                texts=watch.texts if watch is not None else 0,
                stored=watch.done if watch is not None else 0,
                on_cpu=self._on_cpu,
                store=folder if self._options.shared_output else None,
                shipper=self._options.ship(plan) if self._options.ship is not None else None,
            )
        return self._orders[key]

    def _source(self, plan: PassPlan) -> str:
        """The model as the user has named it; a folder with its whole path, as nodes work in other folders."""
        if plan.model.spec is None:
            return str(plan.model.path.absolute())
        chosen = [choice.name for choice, model in self._session.models if model.name == plan.model.name]
        chosen += [str(choice.model) for choice, model in self._session.sparse if model.name == plan.model.name]
        return chosen[0] if chosen else plan.model.name


class _Desk:
    """Where the results of one pass arrive: vectors to its store, events to the run."""

    def __init__(self, work: PassWork, emit: Emit, stack: ExitStack, *, shared: bool) -> None:
        self._work = work
        self._emit = emit
        self._store = work.sink if shared and isinstance(work.sink, VectorStore) else None
        if self._store is not None:
            stack.callback(self._adopt_rest, self._store)
        self._writer = stack.enter_context(VectorWriter(work.sink))

    def take(self, unit: Unit, result: UnitResult, member: Member) -> str | None:
        """Store the vectors of a unit; gives why that cannot be done."""
        events = self._work.events
        if result.shard is not None and self._store is not None:
            if problem := adopt_unit(self._store, result.shard):
                return f"{member.name} has written vectors that cannot be used here: {problem}"
        elif result.vectors is not None:
            # copies: what Ray gives is in its object store, and would stay there as long as it is referred to
            vectors = np.array(result.vectors) if isinstance(result.vectors, np.ndarray) else result.vectors
            self._writer.append(np.array(result.keys), vectors, np.array(result.overlong))
        for rows in result.longest:
            events.overlong.add(rows.keys, rows.tokens, rows.over)
        self.tell(result.events, member)
        return None

    def _adopt_rest(self, store: VectorStore) -> None:
        """What nodes have written and was not taken any more, when the run stops: it is work that is done."""
        for problem in adopt_leftovers(store):
            self._emit(Warned(collection=self._work.events.collection, message=problem))
        store.seal()

    def tell(self, told: Sequence[Event], member: Member) -> None:
        """Tell what has happened on a node."""
        assert member.facts is not None
        for event in told:
            renamed = of_node(event, member.name, member.clock_ahead_s)
            if isinstance(renamed, BatchEncoded):
                self._work.events.adopt(renamed)
            elif renamed is not None:
                self._emit(renamed)

    def reject(self, unit: Unit, reason: str) -> None:
        """Do without a vector for a text."""
        self._work.events.mitigated(TEXT_GIVEN_UP, {"reason": reason, "rows": len(unit)})
        self._work.events.reject(unit.keys, reason)

    def split(self, unit: Unit, reason: str) -> None:
        """Tell that a unit is tried in halves."""
        self._work.events.mitigated(UNIT_SPLIT, {"reason": reason, "rows": len(unit)})

    def lose_answer(self, unit: Unit, reason: str, member: Member) -> None:
        """Tell that vectors of a node were lost on their way."""
        details = {"device": member.name, "reason": reason, "rows": len(unit)}
        self._work.events.mitigated(ANSWER_LOST, details)

    def give_up(self, texts: int, unusable: int) -> None:
        """fp16 is too narrow for the model."""
        if self._work.overflow is not None:
            self._work.overflow.give_up(texts, unusable)
