"""The story of a run: discover, load chunks, resolve models, run the passes, fuse, export."""

from __future__ import annotations

import contextlib
import errno
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ultimate_embedder.chunks import ChunkTable, find_collections, load_chunks, spooled
from ultimate_embedder.config import RunConfig
from ultimate_embedder.devices import Leases
from ultimate_embedder.errors import (
    DevicesLostError,
    NoVectorsError,
    StoppedError,
    UltimateEmbedderError,
    UsageError,
    traceback_of,
)
from ultimate_embedder.events import (
    ChunkRejected,
    CollectionFinished,
    CollectionsFound,
    CollectionSkipped,
    CollectionStarted,
    Emit,
    Event,
    Mitigated,
    RunFinished,
    RunStarted,
    VectorsFused,
    Warned,
)
from ultimate_embedder.execution import (
    FRESH_PROCESS,
    CollectionWork,
    Continuation,
    LocalExecutor,
    known_precision,
    open_store,
    run_in_fresh_process,
    run_passes,
    split_overlong,
)
from ultimate_embedder.export import (
    ExistingExports,
    ExportSize,
    Points,
    drop_damaged_upload_state,
    estimate_export_bytes,
    find_exports,
    measure_payloads,
    write_exports,
)
from ultimate_embedder.inputs import check_collections, discover, target_name
from ultimate_embedder.lock import HeldOutput, hold_output
from ultimate_embedder.models import require_backend
from ultimate_embedder.output import CollectionOutput, Output
from ultimate_embedder.planning import PassPlan, as_candidate
from ultimate_embedder.session import Faults, Session, open_session
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.terminal import valid_unicode
from ultimate_embedder.types import UNNAMED, Collection, HnswGraph, Rejected, Status, VectorSpec
from ultimate_embedder.vectors import FusedVectors, delete_tokens, plan_fusion

NO_VECTOR = "the model gave no usable vector for this text (not finite, or of no length)"
MOST_FRESH_PROCESSES = 3
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def run(
    config: RunConfig, emit: Emit, stop: StopSwitch, session: Session | None = None, command: Sequence[str] = ()
) -> None:
    """Embed every collection of `config.chunks`; one that fails does not stop the others.

    `session` may hold devices and models that an earlier run has opened; `command` is the command line as typed.
    """
    started = time.perf_counter()
    require_backend(config.backend)
    with ExitStack() as stack:
        links = Output(config.output).replaced_links()
        held = stack.enter_context(_held(config, emit, stop)) if not config.dry_run else None
        inputs, typed = ", ".join(map(str, config.chunks)), tuple(map(valid_unicode, command))
        here = _working_directory()
        emit(
            RunStarted(options=config, chunks=inputs, output=str(config.output), command=typed, working_directory=here)
        )
        for message in (*held.notes, *links) if held is not None else ():
            emit(Warned(message=message))
        if held is not None:
            _remove_leftovers(config.output, emit)
        config = replace(config, chunks=stack.enter_context(_on_disk(config, stop)))
        found = discover(config, emit)
        if found.nothing_found:  # before models are fetched for nothing
            emit(RunFinished(error=found.nothing_found, seconds=time.perf_counter() - started))
            return
        emit(CollectionsFound(collections=len(found.collections)))
        for message in check_collections(found.collections, config):
            emit(Warned(message=message))
        session = session.for_run(config, emit, stop) if session else open_session(config, emit, stop)
        stack.callback(session.end_run)
        session.passes_for()  # what cannot be fused is refused now
        for message in _about_precision(session):
            emit(Warned(message=message))
        _embed_collections(found.collections, session, held)
    emit(RunFinished(seconds=time.perf_counter() - started))


def continue_run(work: Continuation, emit: Emit, stop: StopSwitch) -> dict[str, str]:
    """Embed what is left of a run, in a fresh process; gives the devices that were lost to this one as well, and why.

    The process that started it holds the output, and has told how the models were found.
    """
    # cards may have other numbers here than they had there, where one of them is not in the machine any more
    opened = open_session(work.config, lambda event: None, stop, must_exist=False)
    leases = Leases(f"{work.number}.")  # the names of leases differ from those of the process before
    session = replace(opened, emit=emit, faults=Faults(work.deaths), leases=leases)
    config = work.config
    found = find_collections(config.paths, work.collections, config.output, config.name)
    with contextlib.suppress(DevicesLostError):  # the other process knows what to do next
        for collection in found.collections:
            _embed_collection(collection, session)
    session.end_run()
    return {device.name: device.lost for device in session.devices if device.lost is not None}


def _working_directory() -> str:
    try:
        return valid_unicode(str(Path.cwd()))
    except OSError:  # it was deleted
        return ""


def _held(config: RunConfig, emit: Emit, stop: StopSwitch) -> AbstractContextManager[HeldOutput]:
    return hold_output(config.output, report=lambda message: emit(Warned(message=message)), on_lost=stop.stop)


@contextlib.contextmanager
def _on_disk(config: RunConfig, stop: StopSwitch) -> Iterator[tuple[Path, ...]]:
    """The inputs as paths: what is not in a file yet is written to one, in the output unless nothing may be written."""
    with ExitStack() as stack:
        folder = config.output
        if config.dry_run:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="ultimate-embedder-")))
        yield stack.enter_context(spooled(config.chunks, folder, stop.check, config.fields))


def _embed_collections(collections: Sequence[Collection], session: Session, held: HeldOutput | None) -> None:
    """One after the other; in a fresh process from where every device is lost to this one."""
    waiting = [collection.name for collection in collections]
    by_name = {collection.name: collection for collection in collections}
    for number in range(1, MOST_FRESH_PROCESSES + 1):
        with contextlib.suppress(DevicesLostError):
            while waiting and not _must_leave(session):
                _embed_collection(by_name[waiting[0]], session)
                waiting.pop(0)
        if not waiting:
            return
        waiting = _embed_elsewhere(waiting, session, held, number)
    for name in waiting:
        _embed_collection(by_name[name], replace(session, may_restart=False))


def _must_leave(session: Session) -> bool:
    return session.all_lost and bool(session.usable_elsewhere()) and session.stop.reason is None


def _embed_elsewhere(waiting: list[str], session: Session, held: HeldOutput | None, number: int) -> list[str]:
    """Let the fresh process of this number embed these collections; gives those that it has not finished."""
    devices = session.usable_elsewhere()
    deaths = {device.name: session.faults.deaths(device.name) for device in session.devices}
    lost = "; ".join(f"{device.name}: {device.lost}" for device in session.devices)
    details = {"reason": lost, "devices": list(devices), "deaths": deaths}
    session.emit(Mitigated(collection=waiting[0], kind=FRESH_PROCESS.kind, details=details))
    session.emit(
        Warned(message=f"a fresh process goes on with {waiting[0]}: every GPU is lost to the one before ({lost})")
    )
    finished: set[str] = set()

    def emit(event: Event) -> None:
        if isinstance(event, CollectionFinished) and event.collection is not None:
            finished.add(event.collection)
        session.emit(event)

    # what is stored is good, also where all was to be computed anew
    config = replace(session.config, device_order=devices, fresh=False)
    work = Continuation(config, tuple(waiting), deaths, number, held.token if held else None)
    ended = run_in_fresh_process(work, emit, session.stop, held.descriptor if held else None)
    for name, reason in ended.lost.items():
        session.faults.add(name, reason)
    if ended.error is not None:
        session.emit(Warned(message=f"the fresh process could not go on: {ended.error}"))
    return [name for name in waiting if name not in finished]


def _remove_leftovers(output: Path, emit: Emit) -> None:
    try:
        Output(output).remove_leftovers()
    except OSError as error:
        message = f"what a killed run has left behind cannot be deleted ({error.filename}: {error.strerror})"
        emit(Warned(message=message))


def _about_precision(session: Session) -> Iterator[str]:
    """What the user should know about the numbers that will be computed."""
    config, devices = session.config, session.devices
    dtype = devices[0].dtype(config.precision)
    if config.precision == "fp16" and dtype == "float32":
        yield "--precision fp16: a CPU computes in fp32, which is no slower there"
    if config.parallelism == "data-parallel" and len(devices) > 1 and dtype != "float32":
        yield (
            f"--parallelism data-parallel: nn.DataParallel splits every batch, so vectors in {dtype} differ in their "
            "last digits from those of other modes. The default, replicas, does not."
        )


def _embed_collection(collection: Collection, session: Session) -> None:
    started = time.perf_counter()
    passes = session.passes_for(collection.name)
    target = target_name(collection.name, [plan.name for plan in passes], session.config)
    status: Status
    error = None
    try:
        if collection.problem is not None:
            raise UsageError(collection.problem)
        session.emit(CollectionStarted(collection=collection.name, files=len(collection.files)))
        status = _chunks_to_exports(collection, target, passes, session)
    except DevicesLostError as lost:
        if _must_leave(session):
            raise
        status, error = "partial", f"{lost}. Run the same command again to resume."
    except StoppedError as stopped:
        status, error = "partial", f"stopped: {stopped}. Run the same command again to resume."
    except UltimateEmbedderError as failure:
        status, error = "failed", str(failure)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the other collections go on
        status, error = "failed", _in_words(failure, session.config.output)
        if not _is_disk_error(failure):
            session.emit(Warned(collection=collection.name, message=traceback_of(failure)))
    session.emit(
        CollectionFinished(
            collection=collection.name,
            status=status,
            target_qdrant_collection=target if status != "skipped_existing" else None,
            error=error,
            seconds=time.perf_counter() - started,
        )
    )


def _chunks_to_exports(collection: Collection, target: str, passes: list[PassPlan], session: Session) -> Status:
    config, emit = session.config, session.emit
    own = Output(config.output).collection(collection.name)
    folder = own.folder
    own.refuse_links()
    if config.skip_existing and (existing := find_exports(folder, config.exports, config.hnsw)):
        _report_existing(collection.name, existing, emit)
        return "skipped_existing"
    with ExitStack() as stack:
        session.stop.check()
        if config.dry_run:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="ultimate-embedder-")))
        else:
            scratch = folder
        loaded = load_chunks(collection, CollectionOutput(scratch).chunk_table, emit, config.fields)
        stack.callback(loaded.table.remove)
        if not loaded.found:
            return "skipped_no_chunks"
        if config.dry_run:
            return "planned"
        if not len(loaded.table):
            raise NoVectorsError(f"all {loaded.found} records were rejected; 'rejected' says why")
        if config.fresh:
            delete_tokens(CollectionOutput(folder).store)
        if problem := drop_damaged_upload_state(folder):
            emit(Warned(collection=collection.name, message=problem))
        passes = [known_precision(plan, collection.name, config, emit) for plan in passes]
        if config.overlong == "split":
            spool = CollectionOutput(folder).segment_table
            loaded = split_overlong(loaded, spool, passes, collection.name, session)
            stack.callback(loaded.table.remove)
        stores = [open_store(plan, collection.name, config, emit) for plan in passes]
        payloads = cache(partial(measure_payloads, collection.name, loaded.table))
        export_bytes = partial(_export_bytes, config.exports, payloads, config.hnsw)
        work = CollectionWork(collection.name, loaded.table, passes, stores, export_bytes)
        work = run_passes(work, LocalExecutor(session, session.devices_for(collection.name)), session)
        session.stop.check()
        points = _fuse(work, loaded.table, target, session)
        write_exports(
            points,
            folder,
            config.exports,
            emit,
            found=loaded.found,
            split=loaded.split,
            fresh=config.fresh,
            hnsw=config.hnsw,
        )
    return "completed"


def _report_existing(collection: str, existing: ExistingExports, emit: Emit) -> None:
    emit(
        CollectionSkipped(
            collection=collection,
            found=existing.found,
            embedded=existing.embedded,
            rejected=existing.rejected,
            split=existing.split,
            distinct_texts=existing.distinct_texts,
            vectors=existing.vectors,
            exports=existing.files,
            target=existing.target,
        )
    )
    for problem in existing.problems:
        emit(Warned(collection=collection, message=problem))


def _export_bytes(kinds: Sequence[str], payloads: Callable[[], ExportSize], hnsw: HnswGraph | None, dim: int) -> int:
    return estimate_export_bytes(kinds, replace(payloads(), graph=hnsw), [VectorSpec(UNNAMED, dim)])


def _fuse(work: CollectionWork, table: ChunkTable, target: str, session: Session) -> Points:
    pairs = list(zip(work.plans, work.stores, strict=True))
    parts = [as_candidate(plan.model, plan.weight, store.dim or 0) for plan, store in pairs]
    # where a store is empty there is nothing to fuse
    method = session.config.fusion if all(store.dim for store in work.stores) else "named"
    points = Points(work.name, target, table, FusedVectors(work.stores, plan_fusion(method, parts)), session.stop)
    for file, position, models in points.without_vector():
        reason = f"{NO_VECTOR}: {models}" if len(pairs) > 1 else NO_VECTOR
        session.emit(ChunkRejected(collection=work.name, rejected=Rejected(file, position, reason)))
    if not len(points):
        raise NoVectorsError(f"no chunk of {len(table)} has a vector from every model")
    session.emit(VectorsFused(collection=work.name, points=len(points), vectors=points.vectors))
    return points


def _is_disk_error(failure: Exception) -> bool:
    return isinstance(failure, OSError) and failure.errno in DISK_ERRORS


def _in_words(failure: Exception, output: Path) -> str:
    if _is_disk_error(failure):
        what = getattr(failure, "strerror", None) or failure
        return f"cannot write to {output}: {what}. What was written is kept: make room and run the command again."
    return "".join(traceback.format_exception_only(failure)).strip()
