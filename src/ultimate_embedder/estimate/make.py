"""Make a plan: read, tokenise, cut, place and predict, with the code of a run; compute nothing, and write nothing."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ultimate_embedder._version import __version__
from ultimate_embedder.chunks import spooled
from ultimate_embedder.config import RunConfig, history_path
from ultimate_embedder.devices import DescribedDevice, MemoryLimits, describe_device, describe_gpus, open_devices
from ultimate_embedder.estimate.calibrate import Sample, calibrate
from ultimate_embedder.estimate.cluster import NOT_MEASURED, START_NODES_S, distributing, planned_cluster
from ultimate_embedder.estimate.collection import Context, CountedCollection, CountedPass, Report, count_collection
from ultimate_embedder.estimate.disk import planned_disk
from ultimate_embedder.estimate.models import PlanModels, planned_model
from ultimate_embedder.estimate.options import PlanOptions
from ultimate_embedder.estimate.speed import Speeds
from ultimate_embedder.estimate.stages import StageTimes
from ultimate_embedder.estimate.times import Timing, time_run
from ultimate_embedder.estimate.verdict import (
    collection_problems,
    device_lines,
    host_problems,
    memory_problems,
    mode_notes,
    model_problems,
    verdict,
)
from ultimate_embedder.events import Emit, Event, Warned
from ultimate_embedder.history import History, PassRecord, read_history
from ultimate_embedder.inputs import check_collections, discover
from ultimate_embedder.machine import available_bytes
from ultimate_embedder.models import require_backend
from ultimate_embedder.planned import Plan, PlannedCost, PlannedDevice, PlannedModel, byte_size
from ultimate_embedder.planning import DRIVER, ClusterShape, Estimate, Range, cost, in_turn, plan_passes
from ultimate_embedder.stop import StopSwitch


def no_report(what: str, done: int, total: int) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Asked:
    """What a plan is asked for: the options of a run and those of the plan; without an output nothing is stored yet."""

    run: RunConfig
    plan: PlanOptions
    has_output: bool
    command: tuple[str, ...] = ()


def make_plan(asked: Asked, emit: Emit, *, report: Report = no_report, stop: StopSwitch | None = None) -> Plan:
    """What the run will take. Warnings go into the plan; `emit` gets what happens meanwhile, such as downloads."""
    warnings: list[str] = []

    def take(event: Event) -> None:
        if isinstance(event, Warned):
            warnings.append(event.message)
        else:
            emit(event)

    require_backend(asked.run.backend)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ultimate-embedder-")))
        stop = stop or StopSwitch()
        chunks = stack.enter_context(spooled(asked.run.chunks, scratch, stop.check, asked.run.fields))
        asked = replace(asked, run=replace(asked.run, chunks=chunks))
        plan = _Making(asked, scratch, take, report, stop).make()
    return plan.model_copy(update={"warnings": list(dict.fromkeys([*warnings, *plan.warnings]))})


class _Making:
    def __init__(self, asked: Asked, scratch: Path, emit: Emit, report: Report, stop: StopSwitch) -> None:
        self._asked = asked
        self._config = asked.run
        self._scratch = scratch
        self._emit = emit
        self._report = report
        self._stop = stop
        self._notes: list[str] = []

    def make(self) -> Plan:
        config = self._config
        begun = Plan(
            made_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            version=__version__,
            chunks=", ".join(map(str, config.chunks)),
            output=str(config.output) if self._asked.has_output else None,
            command=list(self._asked.command),
        )
        found = discover(config, self._emit)
        if found.nothing_found:
            problem = found.nothing_found
            return begun.model_copy(update={"problems": [problem], "verdict": f"nothing to embed: {problem}"})
        self._notes += check_collections(found.collections, config)
        if models_of_sparse := [each.model for each in config.sparse if each.model]:
            names = ", ".join(models_of_sparse)
            self._notes.append(f"what --sparse splade ({names}) adds to memory, time and disk is not in the plan")
        if config.engine == "ray" and self._asked.plan.nodes is None:
            self._notes.append("the plan is of one machine: --nodes says how many nodes there are")
        devices = self._devices()
        models = PlanModels(config, self._emit, self._scratch)
        self._notes += models.left_out
        if models.chosen:  # what cannot be fused is refused now
            first = devices[0]
            dtype = first.dtype(config.precision)
            plan_passes(config, models.chosen, dtype, on_cpu=not first.has_ceiling, has_vnni=first.has_vnni)
        sample = Sample.empty() if self._asked.plan.calibrate else None
        context = Context(
            config,
            devices,
            models,
            self._scratch,
            self._emit,
            self._report,
            self._stop,
            sample,
            nodes=self._asked.plan.nodes,
        )
        collections = [count_collection(each, context) for each in found.collections]
        return self._finish(begun, context, collections)

    def _devices(self) -> tuple[DescribedDevice, ...]:
        """Those that --gpus describes, else those of this machine."""
        config, gpus = self._config, self._asked.plan.gpus
        limits = MemoryLimits(config.gpu0_ceiling_bytes, config.safety_margin)
        if gpus is not None:
            if config.devices != "auto":
                self._notes.append(f"--devices {config.devices} is ignored: --gpus {gpus} says what the plan is for")
            return describe_gpus(gpus, limits)
        opened = open_devices(
            config.devices,
            limits,
            config.device_order,
            report=lambda message: self._emit(Warned(message=message)),
            timeout_s=config.stall_timeout_s,
        )
        described = tuple(describe_device(device) for device in opened)
        for device in opened:
            device.lift_ceiling()
        return described

    def _finish(self, begun: Plan, context: Context, counted: Sequence[CountedCollection]) -> Plan:
        history = read_history(history_path())
        self._notes += [note for each in counted for note in each.notes]
        self._notes += history.notes
        timing = self._timing(context, history)
        timed = [timing.time_collection(each) for each in counted]
        collections = [planned for planned, _ in timed]
        passes = [(each.planned.collection, one) for each in counted for one in each.passes]
        models = self._models(context, [one for _, one in passes])
        devices = list(device_lines([_planned_device(device) for device in context.devices], counted))
        download = sum(model.download_bytes for model in models)
        config = self._config
        disk = planned_disk(
            config.output if self._asked.has_output else Path.cwd(),
            collections,
            max((each.scratch_bytes for each in counted), default=0),
            download,
            config.hub.download_folder,
        )
        on_nodes = [timing.time_on_nodes(one) for _, one in passes] if timing.cluster is not None else []
        cluster = None
        if timing.cluster is not None and None not in on_nodes:
            cluster = planned_cluster([each for each in on_nodes if each is not None], timing.cluster)
            self._notes += [NOT_MEASURED] if cluster.texts and DRIVER not in cluster.limits else []
        time = time_run(
            collections,
            self._starting(timing, models, [one for _, one in passes], download),
            self._asked.plan.session_s,
            complete=all(encoding is not None for _, encoding in timed) and not context.models.missing,
        )
        missing = list(model_problems(context.models.missing, models, offline=config.hub.offline))
        absent = [each.model for each in context.models.missing]
        absent += [each.model for each in models if each.weights == "missing"]
        problems = [*missing, *memory_problems(passes, devices), *collection_problems(collections)]
        here = all(device.here for device in context.devices)
        if here:
            problems += host_problems(passes, available_bytes())
        if not disk.fits:
            problems.append(
                f"{disk.folder} has {byte_size(disk.free_bytes)} free, and {byte_size(disk.needed_bytes)} are "
                "needed. Free some, choose another --output, or fewer --export."
            )
        plan = begun.model_copy(
            update={
                "devices": devices,
                "models": models,
                "missing_models": context.models.missing,
                "collections": collections,
                "disk": disk,
                "time": time,
                "cluster": cluster,
                "cost": self._cost(time.total.low, time.total.high) if time.total else None,
                "problems": problems,
                "fits": not problems,
                "warnings": [*self._notes, *mode_notes(collections)],
            }
        )
        return plan.model_copy(update={"verdict": verdict(plan, absent, here=here)})

    def _timing(self, context: Context, history: History) -> Timing:
        here = all(device.here for device in context.devices)
        calibrated: dict[str, list[PassRecord]] = {}
        if context.sample is not None:
            for choice, described in context.models.found:
                if described.weights == "here":
                    self._report(f"calibrating {described.name}", 0, 0)
                    for record in calibrate(choice, context.sample, self._config):
                        calibrated.setdefault(record.model, []).append(record)
                else:
                    self._notes.append(f"{described.name} was not calibrated: its weights are not on this machine")
        speeds = Speeds(history.passes, self._config.backend, calibrated)
        return Timing(self._config, context.models, speeds, StageTimes(history.stages, here=here), self._cluster())

    def _cluster(self) -> ClusterShape | None:
        nodes = self._asked.plan.nodes
        return ClusterShape(nodes, self._config.shared_output) if nodes is not None else None

    def _models(self, context: Context, passes: Sequence[CountedPass]) -> list[PlannedModel]:
        """The models, with what they take on the oldest card."""
        capability = min((each.capability for each in context.devices if each.capability is not None), default=None)
        by_name = {each.plan.name: each for each in passes}
        models = []
        for _, described in context.models.found:
            if (one := by_name.get(described.name)) is not None:
                models.append(planned_model(described, one.memory.encoder, capability))
        return models

    def _starting(
        self, timing: Timing, models: Sequence[PlannedModel], passes: Sequence[CountedPass], download: int
    ) -> list[tuple[str, Estimate]]:
        """What a run does before it encodes: models that have work are loaded once."""
        starting = [("start", timing.stages.starting())]
        if download:
            starting.append(("download", timing.stages.downloading(download)))
        busy = {each.plan.name: each.plan for each in passes if each.counts.texts}
        loads = [
            timing.stages.loading_model(timing.models.key(busy[model.model]), model.dtype, model.file_bytes)
            for model in models
            if model.model in busy
        ]
        if timing.cluster is not None:
            sent = [model for model in models if model.model in busy]
            starting.append(("start nodes", Estimate(START_NODES_S, "assumed")))
            starting.append(("models to nodes", distributing(sent, timing.cluster, ship=self._config.ship_models)))
        if loads:
            starting.append(("load models", Estimate(in_turn(loads), "; ".join({each.basis: None for each in loads}))))
        return starting

    def _cost(self, low: float, high: float) -> PlannedCost | None:
        price = self._asked.plan.price_per_hour
        if price is None:
            return None
        machines = self._asked.plan.nodes or 1
        costs = cost(Range(low, high), price * machines)
        return PlannedCost(price_per_hour=price, machines=machines, low=costs.low, high=costs.high)


def _planned_device(device: DescribedDevice) -> PlannedDevice:
    return PlannedDevice(
        name=device.name,
        hardware=device.hardware if device.has_ceiling else f"{device.hardware} ({device.workers} cores)",
        total_bytes=device.total_bytes,
        ceiling_bytes=device.ceiling_bytes,
        outside_bytes=device.outside_bytes,
        has_ceiling=device.has_ceiling,
    )
