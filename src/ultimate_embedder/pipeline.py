"""The story of a run: discover, load chunks, resolve models, run the passes, export. One call a step."""

from __future__ import annotations

import errno
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ultimate_embedder.chunks import ChunkTable, find_collections, load_chunks
from ultimate_embedder.config import ModelChoice, RunConfig, suggest
from ultimate_embedder.devices import CpuDevice, Device, Leases, MemoryLimits, open_devices
from ultimate_embedder.errors import NoVectorsError, StoppedError, UltimateEmbedderError, traceback_of
from ultimate_embedder.events import (
    ChunkRejected,
    CollectionFinished,
    CollectionStarted,
    Emit,
    RunFinished,
    RunStarted,
    VectorsFused,
    Warned,
)
from ultimate_embedder.export import Points, has_exports, target_collection_name, write_exports
from ultimate_embedder.files import remove_leftovers
from ultimate_embedder.lock import hold_output
from ultimate_embedder.output import CollectionOutput, Output
from ultimate_embedder.passes import (
    EncoderPool,
    PassPlan,
    PassRun,
    Stage,
    candidate,
    open_store,
    plan_passes,
    resolve_models,
    run_passes,
)
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import Collection, Rejected, ResolvedModel, Status
from ultimate_embedder.vectors import FusedVectors, VectorStore, plan_fusion

NO_VECTOR = "the model gave no usable vector for this text (not finite, or of no length)"
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


@dataclass(frozen=True)
class _Run:
    """What every step of a run is given."""

    config: RunConfig
    models: list[tuple[ModelChoice, ResolvedModel]]
    devices: list[Device]
    encoders: EncoderPool
    leases: Leases
    stop: StopSwitch
    emit: Emit

    def devices_for(self, collection: str) -> list[Device]:
        """The devices that a collection may use."""
        return [CpuDevice()] if collection in self.config.force_cpu else self.devices

    def passes_for(self, collection: str) -> list[PassPlan]:
        """The passes over a collection."""
        models = self.models[:1] if collection in self.config.no_ensemble else self.models
        return plan_passes(self.config, models, self.devices_for(collection)[0])


def run(config: RunConfig, emit: Emit, stop: StopSwitch | None = None, encoders: EncoderPool | None = None) -> None:
    """Embed every collection below `config.chunks`; one that fails does not stop the others.

    `encoders` may hold models that were loaded before.
    """
    started = time.perf_counter()
    with ExitStack() as stack:
        if not config.dry_run:
            stack.enter_context(hold_output(config.output))
        emit(RunStarted(options=config, chunks=str(config.chunks), output=str(config.output)))
        found = find_collections(config.chunks, config.collections, skip=config.output)
        for message in found.warnings:
            emit(Warned(message=message))
        for message in _unknown_names(config, found.collections):
            emit(Warned(message=message))
        for name in found.missing:
            emit(CollectionFinished(collection=name, status="skipped_missing"))
        limits = MemoryLimits(config.gpu0_ceiling_bytes, config.safety_margin)
        devices = open_devices(config.devices, limits, config.device_order)
        models = resolve_models(config, emit)
        leases = Leases(emit)
        stack.callback(leases.close)
        plan_passes(config, models, devices[0])  # what cannot be fused is refused now
        if config.precision == "fp16" and devices[0].dtype("fp16") == "float32":
            emit(Warned(message="--precision fp16: a CPU computes in fp32, which is no slower there"))
        pool = encoders or EncoderPool(config, emit)
        this = _Run(config, models, devices, pool, leases, stop or StopSwitch(config.deadline_s), emit)
        for collection in found.collections:
            _embed_collection(collection, this)
    emit(RunFinished(seconds=time.perf_counter() - started))


def _unknown_names(config: RunConfig, collections: tuple[Collection, ...]) -> Iterator[str]:
    names = [collection.name for collection in collections]
    for option, given in (("--no-ensemble", config.no_ensemble), ("--force-cpu", config.force_cpu)):
        for name in given:
            if name not in names:
                yield f"{option} {name}: there is no such collection.{suggest(name, names)}"


def _embed_collection(collection: Collection, this: _Run) -> None:
    started = time.perf_counter()
    passes = this.passes_for(collection.name)
    makers = "__".join([*(plan.name for plan in passes), *([this.config.fusion] if len(passes) > 1 else [])])
    target = target_collection_name(collection.name, makers, this.config.dim)
    status: Status
    error = None
    try:
        this.emit(CollectionStarted(collection=collection.name, files=len(collection.files)))
        status = _chunks_to_exports(collection, target, passes, this)
    except StoppedError as stopped:
        status, error = "partial", f"stopped: {stopped}. Run the same command again to go on."
    except UltimateEmbedderError as failure:
        status, error = "failed", str(failure)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the other collections go on
        status, error = "failed", _in_words(failure, this.config.output)
        if not _is_disk_error(failure):
            this.emit(Warned(collection=collection.name, message=traceback_of(failure)))
    this.emit(
        CollectionFinished(
            collection=collection.name,
            status=status,
            target_qdrant_collection=target if status != "skipped_existing" else None,
            error=error,
            seconds=time.perf_counter() - started,
        )
    )


def _chunks_to_exports(collection: Collection, target: str, passes: list[PassPlan], this: _Run) -> Status:
    folder = Output(this.config.output).collection(collection.name).folder
    if this.config.skip_existing and has_exports(folder, this.config.exports):
        return "skipped_existing"
    with ExitStack() as stack:
        this.stop.check()
        if this.config.dry_run:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="ultimate-embedder-")))
        else:
            remove_leftovers(folder)
            scratch = folder
        loaded = load_chunks(collection, CollectionOutput(scratch).chunk_table, this.emit)
        stack.callback(loaded.table.remove)
        if not loaded.found:
            return "skipped_no_chunks"
        if this.config.dry_run:
            return "planned"
        if not len(loaded.table):
            raise NoVectorsError(f"all {loaded.found} records were rejected; 'rejected' says why")
        stores = _run_passes(collection.name, passes, loaded.table, this)
        points = _fuse(collection.name, target, loaded.table, passes, stores, this)
        write_exports(points, folder, this.config.exports, this.emit, fresh=this.config.fresh)
    return "completed"


def _run_passes(name: str, passes: list[PassPlan], table: ChunkTable, this: _Run) -> list[VectorStore]:
    stores = [open_store(plan, name, this.config, this.emit) for plan in passes]
    runs = [
        PassRun(plan, name, table, store, this.encoders, this.stop, this.emit)
        for plan, store in zip(passes, stores, strict=True)
    ]
    run_passes(runs, Stage(this.config, this.devices_for(name), this.leases, this.stop, this.emit))
    this.stop.check()
    return stores


def _fuse(
    name: str, target: str, table: ChunkTable, passes: list[PassPlan], stores: list[VectorStore], this: _Run
) -> Points:
    parts = [candidate(plan.model, plan.weight, store.dim or 0) for plan, store in zip(passes, stores, strict=True)]
    method = this.config.fusion if all(store.dim for store in stores) else "named"  # else there is nothing to fuse
    points = Points(name, target, table, FusedVectors(stores, plan_fusion(method, parts)))
    for file, position, models in points.without_vector():
        reason = f"{NO_VECTOR}: {models}" if len(passes) > 1 else NO_VECTOR
        this.emit(ChunkRejected(collection=name, rejected=Rejected(file, position, reason)))
    if not len(points):
        raise NoVectorsError(f"no chunk of {len(table)} has a vector from every model")
    this.emit(VectorsFused(collection=name, points=len(points), dims=points.dims))
    return points


def _is_disk_error(failure: Exception) -> bool:
    return isinstance(failure, OSError) and failure.errno in DISK_ERRORS


def _in_words(failure: Exception, output: Path) -> str:
    if _is_disk_error(failure):
        what = getattr(failure, "strerror", None) or failure
        return f"cannot write to {output}: {what}. What was written is kept: make room and run the command again."
    return "".join(traceback.format_exception_only(failure)).strip()
