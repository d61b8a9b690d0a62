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
    DevicesOpened,
    Emit,
    Event,
    Mitigated,
    PlanFound,
    RunFinished,
    RunStarted,
    VectorsFused,
    Warned,
)
from ultimate_embedder.execution import (
    FRESH_PROCESS,
    CollectionWork,
    Continuation,
    Engine,
    LocalEngine,
    choose_ways,
    count_words,
    known_precision,
    open_engine,
    open_store,
    run_in_fresh_process,
    run_passes,
    split_overlong,
)
from ultimate_embedder.export import (
    Drafts,
    ExistingExports,
    ExportSize,
    Points,
    begin_exports,
    drop_damaged_upload_state,
    estimate_export_bytes,
    find_exports,
    measure_payloads,
    sparse_exports,
    write_exports,
)
from ultimate_embedder.inputs import check_collections, discover, target_name
from ultimate_embedder.lock import HeldOutput, hold_output
from ultimate_embedder.models import require_backend
from ultimate_embedder.output import CollectionOutput, Output
from ultimate_embedder.planning import PassPlan, as_candidate
from ultimate_embedder.session import Faults, Session, open_session
from ultimate_embedder.state import Damaged
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.terminal import valid_unicode
from ultimate_embedder.types import UNNAMED, Collection, HnswGraph, Rejected, SparseFacts, Status, VectorSpec
from ultimate_embedder.vectors import (
    FusedVectors,
    VectorStore,
    delete_tokens,
    holds_all,
    measure_sparse,
    plan_fusion,
)

NO_VECTOR = "the model gave no usable vector for this text (not finite, or of no length)"
MOST_FRESH_PROCESSES = 3
MANY_VALUES = 3000  # of a sparse vector: SPLADE models give some hundred
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
            _tell_plan(Output(config.output), emit)
        config = replace(config, chunks=stack.enter_context(_on_disk(config, stop)))
        found = discover(config, emit)
        if found.nothing_found:  # before models are fetched for nothing
            emit(RunFinished(error=found.nothing_found, seconds=time.perf_counter() - started))
            return
        emit(CollectionsFound(collections=len(found.collections)))
        for message in check_collections(found.collections, config):
            emit(Warned(message=message))
        engine = stack.enter_context(open_engine(config, emit, stop, session))
        session = engine.session
        stack.callback(session.end_run)
        emit(DevicesOpened(devices=session.device_facts()))
        session.passes_for()  # what cannot be fused is refused now
        for message in _about_precision(session):
            emit(Warned(message=message))
        _embed_collections(found.collections, engine, held)
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
            _embed_collection(collection, LocalEngine(session))
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


def _embed_collections(collections: Sequence[Collection], engine: Engine, held: HeldOutput | None) -> None:
    """One after the other; in a fresh process from where every device is lost to this one."""
    session = engine.session
    waiting = [collection.name for collection in collections]
    by_name = {collection.name: collection for collection in collections}
    for number in range(1, MOST_FRESH_PROCESSES + 1):
        with contextlib.suppress(DevicesLostError):
            while waiting and not _must_leave(session):
                _embed_collection(by_name[waiting[0]], engine)
                waiting.pop(0)
        if not waiting:
            return
        waiting = _embed_elsewhere(waiting, session, held, number)
    for name in waiting:
        _embed_collection(by_name[name], LocalEngine(replace(session, may_restart=False)))


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


def _tell_plan(output: Output, emit: Emit) -> None:
    """Tell of the plan in the output, so that the summary can have it beside what happens."""
    if not output.has_plan:
        return
    from ultimate_embedder.planned import read_plan  # slow to import, and most runs have no plan

    plan = read_plan(output)
    if isinstance(plan, Damaged):
        emit(Warned(message=f"{plan}; it is not compared with this run"))
    elif plan is not None:
        emit(PlanFound(plan=plan.compared()))


def _about_precision(session: Session) -> Iterator[str]:
    """What the user should know about the numbers that will be computed."""
    config, devices = session.config, session.devices
    dtype = devices[0].dtype(config.precision)
    if config.precision == "fp16" and dtype == "float32":
        yield "--precision fp16: a CPU computes in fp32, which is no slower there"
    if config.precision == "bf16" and dtype == "float16":
        yield "--precision bf16: this GPU has no bf16 and computes in fp16"
    if dtype == "int8":
        for backend in sorted({plan.backend for plan in session.passes_for() if plan.kind == "dense"}):
            yield from _about_int8(backend, has_vnni=devices[0].has_vnni)
    if config.parallelism == "data-parallel" and len(devices) > 1 and dtype != "float32":
        yield (
            f"--parallelism data-parallel: nn.DataParallel splits every batch, so vectors in {dtype} differ in their "
            "last digits from those of other modes. The default, replicas, does not."
        )
    if (config.backend != "torch" or dtype == "int8") and any(choice.model for choice, _ in session.sparse):
        asked = f"--backend {config.backend}" if config.backend != "torch" else "--precision int8"
        yield f"{asked}: sparse models are computed by torch, in fp32"


def _about_int8(backend: str, *, has_vnni: bool) -> Iterator[str]:
    """What to expect of int8 here."""
    if backend == "onnx":
        yield (
            "--backend onnx --precision int8: one scale serves a whole batch, so a vector depends on the texts beside "
            "it. That of --backend openvino does not."
        )
    elif not has_vnni:
        yield (
            "--precision int8: this CPU has no VNNI, the instructions for int8. Weights are int8 and products fp32, "
            "which saves memory and no time. --precision fp32 is at least as fast here."
        )


def _embed_collection(collection: Collection, engine: Engine) -> None:
    started, session = time.perf_counter(), engine.session
    passes = session.passes_for(collection.name)
    dense, sparse = ([plan.name for plan in passes if plan.kind == kind] for kind in ("dense", "sparse"))
    target = target_name(collection.name, dense, session.config, sparse)
    status: Status
    error = None
    try:
        if collection.problem is not None:
            raise UsageError(collection.problem)
        session.emit(CollectionStarted(collection=collection.name, files=len(collection.files)))
        status = _chunks_to_exports(collection, target, passes, engine)
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


def _chunks_to_exports(collection: Collection, target: str, passes: list[PassPlan], engine: Engine) -> Status:
    session = engine.session
    config, emit = session.config, session.emit
    own = Output(config.output).collection(collection.name)
    folder = own.folder
    own.refuse_links()
    sparse = [plan.name for plan in passes if plan.kind == "sparse"]
    if config.skip_existing and (existing := find_exports(folder, config.exports, config.hnsw, sparse)):
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
        passes = choose_ways(passes, collection.name, loaded.table, session)
        passes = [known_precision(plan, collection.name, config, emit) for plan in passes]
        if config.overlong == "split":
            spool = CollectionOutput(folder).segment_table
            loaded = split_overlong(loaded, spool, passes, collection.name, session)
            stack.callback(loaded.table.remove)
        stores = [open_store(plan, collection.name, config, emit) for plan in passes]
        payloads = cache(partial(measure_payloads, collection.name, loaded.table))
        drafts: Drafts = {}
        if config.hnsw is None and not all(store.holds(loaded.table.keys).all() for store in stores):
            drafts = stack.enter_context(
                begin_exports(collection.name, loaded.table, folder, config.exports, emit, session.stop)
            )
        export_bytes = partial(_export_bytes, config.exports, payloads, config.hnsw, drafts)
        encoding = sum(not plan.counts_words for plan in passes)
        work = CollectionWork(collection.name, loaded.table, passes[:encoding], stores[:encoding], export_bytes)
        work = run_passes(work, engine.executor_for(collection.name), session)
        words = list(zip(passes[encoding:], stores[encoding:], strict=True))
        for plan, store in words:
            count_words(plan, collection.name, loaded.table, store, session)
        session.stop.check()
        points = _fuse(work, [store for _, store in words], loaded.table, target, session)
        write_exports(
            points,
            folder,
            config.exports,
            emit,
            found=loaded.found,
            split=loaded.split,
            fresh=config.fresh,
            hnsw=config.hnsw,
            drafts=drafts,
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
            sparse=existing.sparse,
            exports=existing.files,
            target=existing.target,
        )
    )
    for problem in existing.problems:
        emit(Warned(collection=collection, message=problem))


def _export_bytes(
    kinds: Sequence[str],
    payloads: Callable[[], ExportSize],
    hnsw: HnswGraph | None,
    drafts: Drafts,
    vector: VectorSpec,
) -> int:
    """What exports will still take on the disk."""
    needed = estimate_export_bytes(kinds, replace(payloads(), graph=hnsw), [replace(vector, name=UNNAMED)])
    return max(0, needed - sum(draft.written_bytes() for draft in drafts.values()))


def _fuse(
    work: CollectionWork, words: Sequence[VectorStore], table: ChunkTable, target: str, session: Session
) -> Points:
    """Join chunks and vectors: those of dense models fused, sparse ones beside them."""
    dense = [pair for pair in zip(work.plans, work.stores, strict=True) if pair[0].kind == "dense"]
    stores = [store for _, store in dense]
    sparse = [*work.stores[len(dense) :], *words]
    parts = [as_candidate(plan.model, plan.weight, store.dim or 0) for plan, store in dense]
    # where a store is empty there is nothing to fuse
    method = session.config.fusion if not any(store.is_empty for store in stores) else "named"
    kept = table.keys[holds_all([*stores, *sparse], table.keys)]
    beside = [measure_sparse(store, kept) for store in sparse]
    vectors = FusedVectors(stores, plan_fusion(method, parts), beside)
    points = Points(work.name, target, table, vectors, session.stop)
    for file, position, models, key in points.without_vector():
        why = work.given_up.get(key, NO_VECTOR)
        reason = f"{why}: {models}" if len(stores) + len(sparse) > 1 else why
        session.emit(ChunkRejected(collection=work.name, rejected=Rejected(file, position, reason)))
    if not len(points):
        raise NoVectorsError(f"no chunk of {len(table)} has a vector from every model")
    session.emit(VectorsFused(collection=work.name, points=len(points), vectors=points.vectors, sparse=vectors.sparse))
    for message in _about_sparse(vectors.sparse, session.config):
        session.emit(Warned(collection=work.name, message=message))
    return points


def _about_sparse(sparse: Sequence[SparseFacts], config: RunConfig) -> Iterator[str]:
    """What the user should know about the sparse vectors that there are now."""
    for each in sparse:
        if each.values_per_point > MANY_VALUES:
            yield (
                f"{each.name} gives {each.values_per_point:,.0f} values for a text: it may not be trained for sparse "
                "vectors. They take much room, and searching them takes long."
            )
    if sparse and config.exports and not set(config.exports) & set(sparse_exports()):
        names = ", ".join(each.name for each in sparse)
        yield (
            f"--export {','.join(config.exports)} has no sparse vectors ({names}). They are stored: add one of "
            f"{', '.join(sparse_exports())}."
        )


def _is_disk_error(failure: Exception) -> bool:
    return isinstance(failure, OSError) and failure.errno in DISK_ERRORS


def _in_words(failure: Exception, output: Path) -> str:
    if _is_disk_error(failure):
        what = getattr(failure, "strerror", None) or failure
        return f"cannot write to {output}: {what}. What was written is kept: make room and run the command again."
    return "".join(traceback.format_exception_only(failure)).strip()
