"""The executor of this machine: lease devices, place models, encode, release."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial

from ultimate_embedder.batching import BATCH_TOKENS, EXPECTED_RESERVE_RATIO
from ultimate_embedder.devices import CpuDevice, Device, Lease, in_one_line, works_in_time
from ultimate_embedder.errors import DevicesLostError, StoppedError
from ultimate_embedder.execution.concurrent import quick_switching, run_together
from ultimate_embedder.execution.encode import Watch, encode
from ultimate_embedder.execution.executor import PassWork
from ultimate_embedder.execution.learned import Learned
from ultimate_embedder.execution.lost_devices import tell_lost
from ultimate_embedder.execution.placement import Placement, place
from ultimate_embedder.execution.roles import in_role
from ultimate_embedder.execution.runner import GUESSED_BYTES_PER_TOKEN
from ultimate_embedder.execution.stalls import Stall, StallWatch
from ultimate_embedder.execution.worker import Worker
from ultimate_embedder.models import Encoder
from ultimate_embedder.planning import (
    DeviceRoom,
    MemoryNeed,
    PassPlan,
    Rows,
    Step,
    StepResult,
    Task,
)
from ultimate_embedder.session import Session
from ultimate_embedder.types import Capability

COMFORTABLE_LENGTH = 512
SMALLEST_LENGTH = 2048  # one text of this length is the smallest batch that a device must have room for
WorkersLearned = dict[tuple[int, str, str, int], Learned]
"""By number of the pass, precision, device, and worker on that device."""


@dataclass(frozen=True)
class _PlacedTask:
    """A task whose devices are leased and whose model is on them."""

    task: Task
    work: PassWork
    lease: Lease
    placement: Placement
    began: float

    @property
    def number(self) -> int:
        """Of the pass."""
        return self.task.plan.number


@dataclass(frozen=True)
class _Crew:
    """A task and its workers."""

    placed: _PlacedTask
    workers: list[Worker]

    @property
    def at_work(self) -> list[Worker]:
        """Those whose device is not lost."""
        return [worker for worker in self.workers if worker.device.lost is None]


class LocalExecutor:
    """Runs the steps of one collection on devices of this machine."""

    shares_tokens = True
    auto_mode = None  # by what models need and what devices have

    def __init__(self, session: Session, devices: Sequence[Device], learned: WorkersLearned | None = None) -> None:
        """`learned` is what the workers of an earlier executor for the same passes have learned, and is added to."""
        self._session = session
        self._devices = {device.name: device for device in devices}
        self._learned: WorkersLearned = {} if learned is None else learned

    def rooms(self) -> list[DeviceRoom]:
        """The devices that still work, and the room that they have now; the CPU when there is none."""
        rooms = [_room(device) for device in self._devices.values() if device.lost is None]
        return [room for room in rooms if self._devices[room.name].lost is None] or [_room(CpuDevice())]

    def devices_at(self, places: Sequence[str]) -> tuple[str, ...]:
        """The devices themselves."""
        return tuple(places)

    def memory_need(self, plan: PassPlan) -> MemoryNeed:
        """What a model takes on a device, predicted; on the oldest card, which takes most."""
        capabilities = [device.capability for device in self._devices.values() if device.capability is not None]
        return memory_need(self._session.load(plan), min(capabilities, default=None))

    def execute(self, step: Step, works: Mapping[int, PassWork]) -> StepResult:
        """Run the tasks of a step at the same time, each on devices that it leases for the step."""
        tasks = [task for task in step.tasks if works[task.plan.number].texts.count(task.rows)]
        if not tasks or self._stopped():
            return StepResult()
        runs_ahead = any(device.runs_ahead for device in self._devices.values())
        try:
            with quick_switching() if runs_ahead else nullcontext():
                return self._execute(tasks, step.lockstep_texts, works)
        except StoppedError:
            raise
        except Exception as error:
            lost = self._find_lost(error, tasks, works)
            if not lost or isinstance(error, DevicesLostError):
                raise
            raise DevicesLostError(f"{' and '.join(lost)} stopped working: {in_one_line(error)}") from error
        finally:
            self._session.loaded.forget_lost(list(self._devices.values()))

    def _find_lost(self, error: Exception, tasks: Sequence[Task], works: Mapping[int, PassWork]) -> list[str]:
        """The devices of the tasks that are lost, if that is what an error means; they are told of, once."""
        mine = {name: self._devices[name] for task in tasks for name in task.place.devices if name in self._devices}
        for device in mine.values():
            if device.lost is None and not works_in_time(device, self._session.config.stall_timeout_s):
                device.retire(in_one_line(error))
        lost = [device for device in mine.values() if device.lost is not None]
        events = works[tasks[0].plan.number].events
        tell_lost(lost, self._session, events.collection, model=events.plan.name)
        return [device.name for device in lost if isinstance(error, DevicesLostError) or device.is_lost(error)]

    def _execute(self, tasks: Sequence[Task], lockstep_texts: int | None, works: Mapping[int, PassWork]) -> StepResult:
        started = time.perf_counter()
        with ExitStack() as stack:
            party = f"{works[tasks[0].plan.number].events.collection} #{started}" if len(tasks) > 1 else None
            placed = [self._lease_and_place(task, works[task.plan.number], party, stack) for task in tasks]
            crews = self._hire(placed)
            for worker in (worker for crew in crews for worker in crew.workers):
                stack.callback(worker.close)
            self._encode_parts(tasks[0].rows, lockstep_texts, crews)
            self._remember(crews)
            ended = time.perf_counter()
        moving = sum(each.lease.moving_seconds for each in placed)
        return StepResult(
            texts=sum(each.work.texts.count(each.task.rows) for each in placed),
            moving_seconds=moving,
            working_seconds=time.perf_counter() - started - moving,
            seconds={each.number: ended - each.began for each in placed},
        )

    def _encode_parts(self, rows: Rows, lockstep_texts: int | None, crews: Sequence[_Crew]) -> None:
        """Encode all rows, with a wait of the passes for each other after each part of a lockstep."""
        for part in rows.split(lockstep_texts or len(rows)):
            if self._stopped() or _begins_again(crews):
                break
            self._encode(crews, part)
            if self._session.config.release_companions:
                for worker in (worker for crew in crews[1:] for worker in crew.at_work):
                    worker.release_weights()

    def _encode(self, crews: Sequence[_Crew], rows: Rows) -> None:
        """Encode some rows with every model at the same time; when one fails the others stop."""
        failed = threading.Event()

        def job(crew: _Crew) -> None:
            plan = crew.placed.task.plan
            tokenizer = in_role(self._session.load(plan), plan)
            may_continue = partial(self._may_continue, failed, crews)
            work, workers = crew.placed.work, crew.at_work
            if not workers:
                raise DevicesLostError(f"{work.plan.name}: its devices stopped working")
            on = partial(_devices_of_workers, workers)
            with self._watch(work, on).watching() as stalls:
                watch = Watch(stalls, partial(self._tell_lost, work))
                encode(rows, work, workers, tokenizer, may_continue, watch)

        jobs: list[Callable[[], None]] = [partial(job, crew) for crew in crews if crew.placed.work.texts.count(rows)]
        if jobs:
            run_together(jobs, stop=failed.set)

    def _tell_lost(self, work: PassWork, device: Device, rows: int) -> None:
        tell_lost([device], self._session, work.events.collection, model=work.plan.name, rows=rows)

    def _watch(self, work: PassWork, devices: Callable[[], Iterable[Device]] = tuple) -> StallWatch:
        def give_up(stall: Stall) -> None:
            limit = self._session.config.stall_timeout_s
            taken = f"{stall.seconds:.0f} s (--stall-timeout {limit:g}s)"
            reason = f"{stall.device.name} has not finished {stall.what} for {taken}"
            stall.device.retire(reason, hangs=True)
            self._session.stop.stop(reason)

        return StallWatch(work.events.stalled, self._session.config.stall_timeout_s, give_up, devices)

    def _watched(self, work: PassWork, device: Device, job: Callable[[], bool]) -> bool:
        """Run something that asks a device, in a thread that can be abandoned; raises `StoppedError` if it hangs."""
        if not device.has_ceiling:
            return job()
        results: list[bool] = []
        with self._watch(work).watching() as stalls, stalls.during(device):
            jobs = [lambda: results.append(job())]
            if not run_together(jobs, stop=lambda: None, given_up=lambda: stalls.given_up):
                raise StoppedError(self._session.stop.reason or f"{device.name} hangs")
        return results[0]

    def _stopped(self) -> bool:
        return self._session.stop.reason is not None

    def _may_continue(self, failed: threading.Event, crews: Sequence[_Crew]) -> bool:
        return not self._stopped() and not failed.is_set() and not _begins_again(crews)

    def _lease_and_place(self, task: Task, work: PassWork, party: str | None, stack: ExitStack) -> _PlacedTask:
        """Have the devices of a task, and its model on them, until the stack ends."""
        lease = stack.enter_context(self._lease(task, work, party))
        work.events.leased(lease.id)
        began = time.perf_counter()
        dtype = task.plan.identity.dtype  # what is kept warm may be of a pass in another precision
        fits = partial(Placement.serves, dtype=dtype)
        placement = lease.occupy(Placement, partial(self._place, task, lease, work), fits)
        return _PlacedTask(task, work, lease, placement, began)

    def _lease(self, task: Task, work: PassWork, party: str | None) -> AbstractContextManager[Lease]:
        config, plan = self._session.config, task.plan
        needed, devices = 0, self._devices_of(task)
        if (config.keep_primary or config.warm_cache) and any(device.has_ceiling for device in devices):
            need = self.memory_need(plan)
            needed = int((need.weight_bytes + need.comfortable_bytes) * EXPECTED_RESERVE_RATIO)
        return self._session.leases.lease(
            plan.name,
            devices,
            self._session.emit,
            collection=work.events.collection,
            model_pass=plan.number,
            party=party,
            needed_bytes=needed,
            keep=config.warm_cache or (config.keep_primary and plan.number == 0),
        )

    def _place(self, task: Task, lease: Lease, work: PassWork) -> Placement:
        # on a CPU the fp32 model does the work of a pass that was planned for a card: it is the faster one there
        half = task.plan.identity.dtype in ("float16", "bfloat16") and not task.plan.on_cpu
        on_cpu = half and not any(device.has_ceiling for device in lease.devices)
        encoder = self._session.load_fp32(task.plan) if on_cpu else self._session.load(task.plan)
        parallelism = self._session.config.parallelism
        return place(encoder, lease.devices, parallelism, work.events.mitigated, partial(self._watched, work))

    def _hire(self, placed: Sequence[_PlacedTask]) -> list[_Crew]:
        """The workers of each pass. A model may ask those after it to make room, never those before it: no deadlock."""
        crews: list[_Crew] = []
        for each in reversed(placed):
            plan = each.task.plan
            workers = [
                Worker(
                    in_role(encoder, plan),
                    device,
                    partial(self._load_fp32, plan),
                    each.work.events.mitigated_on(device.name),
                    dim=plan.identity.dim,
                    learned=self._learned.get((plan.number, plan.identity.dtype, device.name, number)),
                    companions=[worker for crew in crews for worker in crew.workers],
                    refuges=[self._devices[name] for name in each.task.place.refuges],
                    place=plan.number,
                    packs=plan.identity.layout == "packed",
                    overflow=each.work.overflow,
                    alone=len(placed) == 1,
                )
                for number, (encoder, device) in enumerate(each.placement.seats)
            ]
            crews.insert(0, _Crew(each, workers))
        return crews

    def _load_fp32(self, plan: PassPlan) -> Encoder:
        return in_role(self._session.load_fp32(plan), plan)

    def _remember(self, crews: Sequence[_Crew]) -> None:
        """Keep what workers have learned for the next turn on the same devices."""
        for crew in crews:
            plan = crew.placed.task.plan
            for number, worker in enumerate(crew.workers):
                self._learned[plan.number, plan.identity.dtype, worker.device.name, number] = worker.learned

    def _devices_of(self, task: Task) -> list[Device]:
        """Those of the plan that still work."""
        devices = [self._device(name, task) for name in task.place.devices]
        left = [device for device in devices if device.lost is None]
        if not left:
            raise DevicesLostError(f"{task.plan.name}: {' and '.join(task.place.devices)} stopped working")
        return left

    def _device(self, name: str, task: Task) -> Device:
        device = self._devices.get(name)
        if device is None or not device.has_ceiling:
            return CpuDevice(task.place.cpu_workers)
        return device


def _devices_of_workers(workers: Sequence[Worker]) -> list[Device]:
    """Where they work now."""
    return [worker.device for worker in workers]


def _begins_again(crews: Sequence[_Crew]) -> bool:
    """Whether a pass has to begin again in fp32; then all stop, and what they have done is kept."""
    watches = [crew.placed.work.overflow for crew in crews]
    return any(watch is not None and watch.too_narrow for watch in watches)


def memory_need(encoder: Encoder, capability: Capability | None) -> MemoryNeed:
    """What a model takes on a card of that capability, predicted."""

    def activations(tokens: int, length: int) -> int:
        length = min(length, encoder.max_tokens)
        rows = max(1, tokens // length)
        if encoder.tokenizes:
            return encoder.peak_bytes(rows, length, capability)
        return rows * length * GUESSED_BYTES_PER_TOKEN

    return MemoryNeed(
        model=encoder.name,
        weight_bytes=encoder.weight_bytes,
        smallest_bytes=activations(1, SMALLEST_LENGTH),
        comfortable_bytes=activations(BATCH_TOKENS, COMFORTABLE_LENGTH),
    )


def _room(device: Device) -> DeviceRoom:
    room = int(device.hold_ceiling().usable_bytes / EXPECTED_RESERVE_RATIO) if device.has_ceiling else 0
    return DeviceRoom(device.name, device.has_ceiling, room)
