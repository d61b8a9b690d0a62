"""Run the passes over a collection: choose the mode, plan the stages, hand their steps to an executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ultimate_embedder.chunks import TextRows
from ultimate_embedder.config import RunConfig
from ultimate_embedder.errors import DevicesLostError
from ultimate_embedder.events import CompanionPlaced, Emit, ModeChosen, TurnFinished, Warned
from ultimate_embedder.execution.checking import HALF, OverflowWatch
from ultimate_embedder.execution.executor import Executor, PassWork
from ultimate_embedder.execution.full_precision import begin_in_fp32, too_narrow
from ultimate_embedder.execution.ladder import COMPANION_TO_CPU, COMPANION_TO_GPU, NothingHelpedError
from ultimate_embedder.execution.lost_devices import tell_lost, tell_none_left
from ultimate_embedder.execution.overlong import count_stored, find_texts
from ultimate_embedder.execution.pass_events import PassEvents
from ultimate_embedder.execution.pass_store import require_room, vector_bytes
from ultimate_embedder.execution.precision_check import check_precision
from ultimate_embedder.execution.shared_tokens import share_tokens
from ultimate_embedder.execution.windows import TableTexts, first_occurrences
from ultimate_embedder.machine import usable_cores
from ultimate_embedder.output import Output
from ultimate_embedder.planning import (
    MODES,
    DeviceRoom,
    PassPlan,
    Place,
    Rows,
    Stage,
    StepResult,
    plan_stages,
    settle_mode,
)
from ultimate_embedder.session import Session
from ultimate_embedder.types import VectorSpec, is_cpu
from ultimate_embedder.vectors import EncoderFacts, PassVectors, delete_tokens, fingerprint


@dataclass(frozen=True)
class CollectionWork:
    """A collection, the passes over it, and the store of each."""

    name: str
    table: TextRows
    plans: Sequence[PassPlan]
    stores: Sequence[PassVectors]
    export_bytes: Callable[[VectorSpec], int] | None
    """What the exports will take on disk if points have this vector; None if nothing is kept on disk."""
    given_up: Mapping[bytes, str] = field(default_factory=dict)
    """Texts that there are no vectors of, by key, and why."""

    @property
    def in_memory(self) -> bool:
        """Whether nothing is kept on disk."""
        return self.export_bytes is None

    @property
    def rows(self) -> Rows:
        """All of its chunks."""
        return Rows(0, len(self.table))


@dataclass
class _Progress:
    """What has been told of the passes, by fingerprint, so that one that is planned again repeats nothing of others."""

    started: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    placed: set[tuple[str, str]] = field(default_factory=set)
    """Companions and their devices."""
    seconds: dict[str, float] = field(default_factory=dict)
    events: dict[int, PassEvents] = field(default_factory=dict)
    """By number of the pass."""
    mode: str | None = None


def run_passes(collection: CollectionWork, executor: Executor, session: Session) -> CollectionWork:
    """Run every pass to its end, or until the run is stopped. A pass that has nothing to do takes no device.

    When the devices of a pass are lost, what is left is planned again for those that still work, or for the CPU; raises
    `DevicesLostError` if a fresh process should do it. A pass that fp16 is too narrow for begins again in fp32. Gives
    the collection with the passes that were run.
    """
    progress = _Progress()
    while True:
        lost_before = session.count_lost()
        try:
            narrow = _run_passes(collection, executor, session, progress)
        except DevicesLostError:
            if not _can_go_on(collection, session, lost_before):
                raise
            progress.started &= progress.finished  # they are told of again, with their new devices
        except (NothingHelpedError, MemoryError) as error:
            if not session.all_lost:
                raise
            raise DevicesLostError(f"every GPU stopped working, and the CPU has no room: {error}") from error
        else:
            if not narrow:
                given_up = {key: why for told in progress.events.values() for key, why in told.rejected.items()}
                return replace(collection, given_up=given_up)
            collection = _begin_again(collection, narrow, session)


def _can_go_on(collection: CollectionWork, session: Session, lost_before: int) -> bool:
    """Tell what was lost; whether this process can do the rest, on other devices or on the CPU."""
    session.find_lost()
    if session.count_lost() == lost_before:
        return False
    tell_lost(session.devices, session, collection.name)
    if session.all_lost and session.usable_elsewhere():
        return False
    if session.all_lost:
        tell_none_left(session, collection.name)
    return True


def _run_passes(
    collection: CollectionWork, executor: Executor, session: Session, progress: _Progress
) -> list[PassWork]:
    """Run what is left of all passes; gives those that have to begin again in fp32 first."""
    works = _works(collection, session.emit, progress.events)
    waiting = [work.plan for work in works if work.texts.count(collection.rows)]
    rooms = executor.rooms()
    tell_lost(session.devices, session, collection.name)  # those that are found lost only now
    mode, why = _choose_mode(works, waiting, rooms, executor, session.config)
    if progress.mode != mode:
        progress.mode = mode
        _report_mode(mode, why, collection, session)
    here = None if collection.in_memory else Output(session.config.output).collection(collection.name)
    sharing = here is not None and executor.shares_tokens
    works, tokens = share_tokens(works, collection.rows, here, session) if here and sharing else (works, [])
    together = MODES[mode].together and any(room.has_ceiling for room in rooms)
    stages = plan_stages(
        MODES[mode],
        collection.plans,
        rooms,
        waiting=[plan.number for plan in waiting],
        needs={plan.number: executor.memory_need(plan) for plan in waiting} if together else {},
        cores=usable_cores(),
        share=session.config.companions == "share",
    )
    by_number = {work.plan.number: work for work in works}
    for stage in stages:
        _run_stage(stage, collection, by_number, executor, session, progress)
        if session.stop.reason is None and (narrow := too_narrow(by_number)):
            return [by_number[number] for number in narrow]
    if session.stop.reason is None and here:
        for store in tokens:
            store.remove()
        delete_tokens(here.store)  # also what earlier runs have left
    return []


def _begin_again(collection: CollectionWork, narrow: Sequence[PassWork], session: Session) -> CollectionWork:
    """The collection with these passes in fp32, and with new stores for them."""
    plans, stores = list(collection.plans), list(collection.stores)
    for work in narrow:
        number = work.plan.number
        plans[number], stores[number] = begin_in_fp32(work, collection.name, session, in_memory=collection.in_memory)
    return replace(collection, plans=plans, stores=stores)


def _report_mode(mode: str, why: str, collection: CollectionWork, session: Session) -> None:
    dense = [plan for plan in collection.plans if plan.kind == "dense"]
    session.emit(
        ModeChosen(
            collection=collection.name,
            mode=mode,
            why=why,
            fusion=session.config.fusion if len(dense) > 1 else "none",
            weights={plan.name: plan.weight for plan in dense},
        )
    )


def _works(collection: CollectionWork, emit: Emit, events: dict[int, PassEvents]) -> list[PassWork]:
    """What each pass has to do: texts that have a vector, or equal an earlier row's, cost nothing.

    `events` are those of passes that are planned again: their batches are counted on.
    """
    first = first_occurrences(collection.table.keys)
    works = []
    for plan, store in zip(collection.plans, collection.stores, strict=True):
        texts = TableTexts(collection.table, first & ~store.holds(collection.table.keys))
        known = events.get(plan.number)
        events[plan.number] = known.of(plan) if known else PassEvents(plan, collection.name, emit)
        watch = _watch(plan, texts, collection)
        works.append(PassWork(plan=plan, texts=texts, sink=store, events=events[plan.number], overflow=watch))
    return works


def _watch(plan: PassPlan, texts: TableTexts, collection: CollectionWork) -> OverflowWatch | None:
    if plan.identity.dtype != HALF:
        return None
    distinct = collection.table.distinct_texts()
    return OverflowWatch(distinct, stored=distinct - texts.count(collection.rows))


def _choose_mode(
    works: Sequence[PassWork],
    waiting: Sequence[PassPlan],
    rooms: Sequence[DeviceRoom],
    executor: Executor,
    config: RunConfig,
) -> tuple[str, str]:
    if config.mode == "auto" and len(works) > 1 and executor.auto_mode is not None:
        return executor.auto_mode
    return settle_mode(
        config.mode,
        len(works),
        [plan.name for plan in waiting],
        [room for room in rooms if room.has_ceiling],
        lambda: [executor.memory_need(plan) for plan in waiting],
        share=config.companions == "share",
    )


def _run_stage(
    stage: Stage,
    collection: CollectionWork,
    works: Mapping[int, PassWork],
    executor: Executor,
    session: Session,
    progress: _Progress,
) -> None:
    passes = {place.plan.number: fingerprint(place.plan.identity) for place in stage.places}
    if progress.finished.issuperset(passes.values()):
        return
    if stage.together:
        _report_placements(stage, collection, works, session.emit, progress.placed)
    for place in stage.places:
        if passes[place.plan.number] not in progress.started:
            _start_pass(place, collection, works[place.plan.number], executor, session)
    progress.started.update(passes.values())
    for number, seconds in _run_steps(stage, collection, works, executor, session.emit).items():
        progress.seconds[passes[number]] = progress.seconds.get(passes[number], 0.0) + seconds
    if session.stop.reason is None and too_narrow(works):
        return
    for place in stage.places:
        seconds = progress.seconds[passes[place.plan.number]]
        _finish_pass(place, collection, works[place.plan.number], seconds, executor, session)
    progress.finished.update(passes.values())


def _run_steps(
    stage: Stage, collection: CollectionWork, works: Mapping[int, PassWork], executor: Executor, emit: Emit
) -> dict[int, float]:
    """All rows, in one go or turn by turn; gives how long each pass had its devices, by number."""
    taken = {place.plan.number: 0.0 for place in stage.places}
    rows = collection.rows
    start, texts = 0, stage.turn.first_texts if stage.turn else len(rows)
    while start < rows.stop:
        part = Rows(start, min(start + texts, rows.stop))
        results = []
        for step in stage.steps(part):
            results.append(executor.execute(step, works))
            for number, seconds in results[-1].seconds.items():
                taken[number] += seconds
            if too_narrow(works):
                return taken
        if stage.turn:
            emit(TurnFinished(collection=collection.name, texts=len(part), moving_share=_moving_share(results)))
            texts = stage.turn.next_texts(results)
        start = part.stop
    return taken


def _moving_share(results: Sequence[StepResult]) -> float:
    total = sum(result.moving_seconds + result.working_seconds for result in results)
    return sum(result.moving_seconds for result in results) / max(total, 1e-9)


def _report_placements(
    stage: Stage,
    collection: CollectionWork,
    works: Mapping[int, PassWork],
    emit: Emit,
    placed: set[tuple[str, str]],
) -> None:
    """Say where companions work, and why, unless that is in `placed`."""
    busy = [place for place in stage.places if works[place.plan.number].texts.count(collection.rows)]
    primary = busy[0].devices if busy else ()
    for place in busy[1:]:
        if place.why and (place.plan.name, place.devices[0]) not in placed:
            placed.add((place.plan.name, place.devices[0]))
            emit(
                CompanionPlaced(
                    collection=collection.name,
                    kind=(COMPANION_TO_CPU if place.devices == ("cpu",) else COMPANION_TO_GPU).kind,
                    model=place.plan.name,
                    device=place.devices[0],
                    primary_device=primary[0],
                    why=place.why,
                )
            )


def _start_pass(place: Place, collection: CollectionWork, work: PassWork, executor: Executor, session: Session) -> None:
    """Load the model, if there is anything to encode, and see that there is room for its vectors."""
    plan, store = place.plan, collection.stores[place.plan.number]
    new_texts = work.texts.count(collection.rows)
    if new_texts and session.stop.reason is None:
        encoder = session.load(plan)
        if collection.export_bytes is not None:
            spec = VectorSpec(plan.name, None if plan.kind == "sparse" else plan.identity.dim or encoder.dim, plan.kind)
            needed_bytes = new_texts * vector_bytes(spec) + collection.export_bytes(spec)
            here = Output(session.config.output).collection(collection.name)
            require_room(here.store, needed_bytes, len(collection.table))
        store.describe_encoder(EncoderFacts(encoder.max_tokens, encoder.document_prompt))
        if not work.events.overlong.tokens:  # else they are counted: the pass goes on after its devices were lost
            keys = collection.table.keys
            stored = TableTexts(collection.table, first_occurrences(keys) & store.overlong(keys))
            count_stored(stored, collection.rows, encoder, work.events.overlong)
    texts = collection.table.distinct_texts()
    devices = executor.devices_at(place.devices)
    work.events.started(devices, texts, stored_texts=texts - new_texts, facts=store.encoder_facts)


def _finish_pass(
    place: Place, collection: CollectionWork, work: PassWork, seconds: float, executor: Executor, session: Session
) -> None:
    plan, done = place.plan, work.events.done
    store, keys = collection.stores[plan.number], collection.table.keys
    if plan.loses_on_cpu and session.stop.reason is None:
        new_rows = 0 if collection.in_memory else done.rows  # one call after the other: the first is measured
        check_precision(plan, collection.name, collection.table, store, session, new_rows=new_rows)
    on_cpu = sum(rows for name, rows in done.rows_on.items() if is_cpu(name))
    # where CPUs are planned there are no cards; nodes that have joined since then have CPUs too
    if on_cpu and not any(map(is_cpu, executor.devices_at(place.devices))):
        message = (
            f"{plan.name}: {on_cpu} of {done.rows} texts were encoded on the CPU, in fp32: no GPU had room for them. "
            "Free GPU memory, or lower --max-tokens."
        )
        session.emit(Warned(collection=collection.name, message=message))
    work.events.finished(
        seconds,
        dim=store.dim or 0,
        stored_chunks=int(store.holds(keys).sum()),
        overlong=int(store.overlong(keys).sum()),
        lost_most=find_texts(collection.table, work.events.overlong.longest),
    )
