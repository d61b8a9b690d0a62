"""What runs on a node: the executor of one machine, fed with units. It knows nothing of Ray."""

from __future__ import annotations

import functools
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from ultimate_embedder.config import RunConfig
from ultimate_embedder.devices import Leases, MemoryLimits, open_devices
from ultimate_embedder.errors import ModelError
from ultimate_embedder.events import Event, Warned
from ultimate_embedder.execution.checking import HALF, OverflowWatch
from ultimate_embedder.execution.cluster.facts import NodeFacts, here
from ultimate_embedder.execution.cluster.shared_output import write_unit
from ultimate_embedder.execution.cluster.stream import ALL_ROWS, StreamEvents, UnitStream, collector_for
from ultimate_embedder.execution.cluster.units import PassOrder, Shipper, Unit, UnitResult
from ultimate_embedder.execution.executor import PassWork
from ultimate_embedder.execution.local import LocalExecutor
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import PIECE_BYTES, Receiver, find_shipped, resolve_model
from ultimate_embedder.planning import Place, Step, Task
from ultimate_embedder.session import Faults, LoadedModels, Session
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import ResolvedModel
from ultimate_embedder.vectors import EncoderFacts

LONGEST_END_S = 60.0  # for the loop to finish its batches when a pass is over


@dataclass(frozen=True)
class Progress:
    """How far a node is: batches since it began, and what has happened since it was last asked."""

    batches: int
    events: tuple[Event, ...]


@dataclass(frozen=True)
class PassFacts:
    """What a node knows of a pass when its model is loaded."""

    encoder: EncoderFacts
    dim: int
    events: tuple[Event, ...]


class EventBox:
    """Events until somebody fetches them; may be used from any thread."""

    def __init__(self) -> None:
        self.batches = 0
        self._events: list[Event] = []
        self._lock = OrderedLock("events of a node", Rank.EMIT)

    def add(self, event: Event) -> None:
        """Keep an event."""
        with self._lock:
            self._events.append(event)

    def count_batch(self) -> None:
        """Another batch is done; what there is to tell of it goes with its unit."""
        with self._lock:
            self.batches += 1

    def empty(self) -> tuple[Event, ...]:
        """All events so far, which are not kept any longer."""
        with self._lock:
            events, self._events = tuple(self._events), []
        return events


class Node:
    """The devices of a machine and the models on them. Its methods may be called from several threads."""

    def __init__(self, config: RunConfig, cores: int) -> None:
        self._cores = cores
        self._events = EventBox()
        # a model stays on the devices from unit to unit
        self._config = replace(config, warm_cache=True)
        self._pass: _RunningPass | None = None

    @functools.cached_property
    def _session(self) -> Session:
        """The devices are opened with the first question, so that what is wrong with them is its answer."""
        config = self._config
        devices = open_devices(
            config.devices,
            MemoryLimits(config.gpu0_ceiling_bytes, config.safety_margin),
            config.device_order,
            report=lambda message: self._events.add(Warned(message=message)),
            timeout_s=config.stall_timeout_s,
        )
        return Session(
            config=config,
            devices=tuple(devices),
            models=(),
            resolved=(),
            sparse=(),
            loaded=LoadedModels.on(devices),
            leases=Leases(),
            stop=StopSwitch(),
            emit=self._events.add,
            faults=Faults(),
            may_restart=False,
        )

    def describe(self) -> NodeFacts:
        """The node as the driver must know it."""
        return here(self._session.devices, self._config.precision, self._cores, time.time())

    def begin(self, order: PassOrder) -> PassFacts:
        """Find and load the model of a pass, and be ready for its units; the pass before it ends."""
        if self._pass is not None:
            self._pass.end()
            self._pass = None
        model = find_model(order, self._config)
        plan = replace(order.plan, model=model)
        encoder = self._session.load(plan)
        self._pass = _RunningPass(replace(order, plan=plan), self._session, self._events, self._cores)
        dim = plan.identity.dim or encoder.dim
        return PassFacts(EncoderFacts(encoder.max_tokens, encoder.document_prompt), dim, self._events.empty())

    def encode(self, unit: Unit) -> UnitResult:
        """The vectors of a unit of the pass that was begun; waits for them."""
        if self._pass is None or self._pass.number != unit.model_pass:
            raise RuntimeError(f"a unit of pass {unit.model_pass}, which was not begun here")
        return self._pass.encode(unit).result()

    def progress(self) -> Progress:
        """How far it is; answers at once, also while units are encoded."""
        return Progress(self._events.batches, self._events.empty())

    def stop(self, reason: str) -> None:
        """Finish the batches that are under way, and no more: units give what there is of them."""
        self._session.stop.stop(reason)

    def finish(self) -> tuple[Event, ...]:
        """The pass is over: leave the devices; gives what has happened since it was last asked."""
        if self._pass is not None:
            self._pass.end()
            self._pass = None
        return self._events.empty()


def find_model(order: PassOrder, config: RunConfig) -> ResolvedModel:
    """The model of a pass on this machine: sent by the driver, in the cache, or downloaded; the very same files."""
    wanted = order.plan.model
    if shipped := find_shipped(wanted, config.hub):
        return shipped
    try:
        found = resolve_model(order.source, config.hub, kind="sparse" if order.plan.kind == "sparse" else "embedder")
    except ModelError:
        if order.shipper is None:
            raise
        return _fetch(wanted, order.shipper, config)
    if found.digest != wanted.digest and order.shipper is not None:
        return _fetch(wanted, order.shipper, config)
    if found.digest != wanted.digest:
        raise ModelError(
            f"{wanted.name} has other files on this node ({found.path}: revision {found.revision}, digest "
            f"{found.digest[:12]}) than where the run was started (revision {wanted.revision}, digest "
            f"{wanted.digest[:12]}). Copy the same files there, or give --ship-models."
        )
    return replace(found, name=wanted.name, revision=wanted.revision)


def _fetch(wanted: ResolvedModel, shipper: Shipper, config: RunConfig) -> ResolvedModel:
    """Have a model sent, piece by piece."""
    files = shipper.files()
    receiver = Receiver(wanted.digest, files, config.hub)
    for file in files:
        for offset in range(0, max(file.size_bytes, 1), PIECE_BYTES):
            receiver.add(file.name, offset, shipper.piece(file.name, offset))
    receiver.finish()
    found = find_shipped(wanted, config.hub)
    if found is None:
        raise ModelError(f"{wanted.name} was sent to this node, and is damaged there.")
    return found


class _RunningPass:
    """The loop of one pass on a thread of its own, which lives as long as there may be units."""

    def __init__(self, order: PassOrder, session: Session, events: EventBox, cores: int) -> None:
        plan = order.plan
        self.number = plan.number
        self._stream = UnitStream()
        self._order, self._events = order, events
        self._collector = collector_for(plan.identity, self._finish)
        told = StreamEvents(plan, order.collection, events, self._collector)
        self._watch = OverflowWatch(order.texts, order.stored) if plan.identity.dtype == HALF else None
        self._work = PassWork(plan, self._stream, self._collector, told, overflow=self._watch)
        self._session = session
        names = tuple(device.name for device in session.devices) if not order.on_cpu else ("cpu",)
        self._step = Step((Task(ALL_ROWS, Place(plan, names, cpu_workers=cores)),))
        self._thread = threading.Thread(target=self._run, name="units", daemon=True)
        self._thread.start()

    def encode(self, unit: Unit) -> Future[UnitResult]:
        """Encode a unit after those before it."""
        result = self._collector.begin(unit)
        self._stream.add(unit)
        return result

    def end(self) -> None:
        """Do what is waiting, and leave the devices."""
        self._stream.close()
        self._thread.join(LONGEST_END_S)

    def _run(self) -> None:
        executor = LocalExecutor(self._session, self._session.devices)
        try:
            executor.execute(self._step, {self.number: self._work})
        except BaseException as error:  # noqa: BLE001 - raised again where units are waited for
            self._collector.end(error)
        else:
            watch = self._watch
            narrow = (watch.done, watch.unusable) if watch is not None and watch.too_narrow else None
            self._collector.end(None, too_narrow=narrow)

    def _finish(self, result: UnitResult) -> UnitResult:
        if self._order.store is not None and result.vectors is not None:
            result = write_unit(result, Path(self._order.store), self._order.plan.identity)
        return result.with_events((*result.events, *self._events.empty()))
