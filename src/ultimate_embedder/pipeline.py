"""The story of a run: discover, load chunks, resolve models, run the passes, export. One call a step."""

from __future__ import annotations

import errno
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ultimate_embedder.chunks import ChunkTable, find_collections, load_chunks
from ultimate_embedder.config import RunConfig
from ultimate_embedder.devices import MemoryLimits, open_devices
from ultimate_embedder.errors import NoVectorsError, StoppedError, UltimateEmbedderError
from ultimate_embedder.events import (
    ChunkRejected,
    CollectionFinished,
    CollectionStarted,
    Emit,
    RunFinished,
    RunStarted,
    Warned,
)
from ultimate_embedder.export import Points, target_collection_name, write_exports
from ultimate_embedder.files import remove_leftovers
from ultimate_embedder.lock import hold_output
from ultimate_embedder.passes import (
    EncoderPool,
    PassPlan,
    open_store,
    plan_passes,
    require_built,
    resolve_models,
    run_pass,
)
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import Collection, Rejected, Status

NO_VECTOR = "the model gave no usable vector for this text (not finite, or of no length)"
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


@dataclass(frozen=True)
class _Run:
    """What every step of a run is given."""

    config: RunConfig
    passes: list[PassPlan]
    encoders: EncoderPool
    stop: StopSwitch
    emit: Emit


def run(config: RunConfig, emit: Emit, stop: StopSwitch | None = None) -> None:
    """Embed every collection below `config.chunks`; one that fails does not stop the others."""
    started = time.perf_counter()
    with ExitStack() as stack:
        if not config.dry_run:
            stack.enter_context(hold_output(config.output))
        emit(RunStarted(options=config.as_dict(), chunks=str(config.chunks), output=str(config.output)))
        found = find_collections(config.chunks, config.collections, skip=config.output)
        for message in found.warnings:
            emit(Warned(message=message))
        for name in found.missing:
            emit(CollectionFinished(collection=name, status="skipped_missing"))
        require_built(config)
        devices = open_devices(config.devices, MemoryLimits(config.gpu0_ceiling_bytes, config.safety_margin))
        passes = plan_passes(config, resolve_models(config, emit), devices)
        this = _Run(config, passes, EncoderPool(config, emit), stop or StopSwitch(config.deadline_s), emit)
        for collection in found.collections:
            _embed_collection(collection, this)
    emit(RunFinished(seconds=time.perf_counter() - started))


def _embed_collection(collection: Collection, this: _Run) -> None:
    started = time.perf_counter()
    target = target_collection_name(collection.name, this.passes[0].model.name, this.config.dim)
    status: Status
    error = None
    try:
        this.emit(CollectionStarted(collection=collection.name, files=len(collection.files)))
        status = _chunks_to_exports(collection, target, this)
    except StoppedError as stopped:
        status, error = "partial", f"stopped: {stopped}. Run the same command again to go on."
    except UltimateEmbedderError as failure:
        status, error = "failed", str(failure)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the other collections go on
        status, error = "failed", _in_words(failure, this.config.output)
        this.emit(Warned(collection=collection.name, message=traceback.format_exc()))
    this.emit(
        CollectionFinished(
            collection=collection.name,
            status=status,
            target_qdrant_collection=target,
            error=error,
            seconds=time.perf_counter() - started,
        )
    )


def _chunks_to_exports(collection: Collection, target: str, this: _Run) -> Status:
    folder = this.config.output / collection.name
    with ExitStack() as stack:
        this.stop.check()
        if this.config.dry_run:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="ultimate-embedder-")))
        else:
            remove_leftovers(folder)
            scratch = folder
        loaded = load_chunks(collection, scratch / ".chunks.arrow.partial", this.emit)
        stack.callback(loaded.table.remove)
        if not loaded.found:
            return "skipped_no_chunks"
        if this.config.dry_run:
            return "planned"
        if not len(loaded.table):
            raise NoVectorsError(f"all {loaded.found} records were rejected; 'rejected' says why")
        points = _run_passes(collection.name, target, loaded.table, this)
        write_exports(points, folder, this.config.exports, this.emit)
    return "completed"


def _run_passes(name: str, target: str, table: ChunkTable, this: _Run) -> Points:
    for plan in this.passes:
        store = open_store(plan, name, this.config, this.emit)
        run_pass(plan, name, table, store, this.encoders, this.stop, this.emit)
        this.stop.check()
    points = Points(name, target, table, store)
    for file, position in points.without_vector():
        this.emit(ChunkRejected(collection=name, rejected=Rejected(file, position, NO_VECTOR)))
    if not len(points):
        raise NoVectorsError(f"the model gave no usable vector for any of {len(table)} chunks")
    return points


def _in_words(failure: Exception, output: Path) -> str:
    if isinstance(failure, OSError) and failure.errno in DISK_ERRORS:
        what = failure.strerror or failure
        return f"cannot write to {output}: {what}. What was written is kept: make room and run the command again."
    return "".join(traceback.format_exception_only(failure)).strip()
