"""The story of a run: discover, load chunks, resolve models, run the passes, export. One call a step."""

from __future__ import annotations

import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from ultimate_embedder.chunks import find_collections, load_chunks
from ultimate_embedder.config import RunConfig
from ultimate_embedder.devices import MemoryLimits, open_devices
from ultimate_embedder.errors import NoVectorsError, UltimateEmbedderError
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
from ultimate_embedder.passes import EncoderPool, PassPlan, plan_passes, resolve_models, run_pass
from ultimate_embedder.types import Collection, Rejected, Status
from ultimate_embedder.vectors import VectorStore

NO_VECTOR = "the model gave no usable vector for this text (not finite, or of no length)"


def run(config: RunConfig, emit: Emit) -> None:
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
        devices = open_devices(config.devices, MemoryLimits(config.gpu0_ceiling_bytes, config.safety_margin))
        passes = plan_passes(config, resolve_models(config, emit), devices)
        encoders = EncoderPool(config, emit)
        for collection in found.collections:
            _embed_collection(collection, config, passes, encoders, emit)
    emit(RunFinished(seconds=time.perf_counter() - started))


def _embed_collection(
    collection: Collection, config: RunConfig, passes: list[PassPlan], encoders: EncoderPool, emit: Emit
) -> None:
    started = time.perf_counter()
    target = target_collection_name(collection.name, passes[0].model.name, config.dim)
    error = None
    try:
        emit(CollectionStarted(collection=collection.name, files=len(collection.files)))
        status = _chunks_to_exports(collection, target, config, passes, encoders, emit)
    except UltimateEmbedderError as failure:
        status, error = "failed", str(failure)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the other collections go on
        status, error = "failed", "".join(traceback.format_exception_only(failure)).strip()
        emit(Warned(collection=collection.name, message=traceback.format_exc()))
    emit(
        CollectionFinished(
            collection=collection.name,
            status=status,
            target_qdrant_collection=target,
            error=error,
            seconds=time.perf_counter() - started,
        )
    )


def _chunks_to_exports(
    collection: Collection,
    target: str,
    config: RunConfig,
    passes: list[PassPlan],
    encoders: EncoderPool,
    emit: Emit,
) -> Status:
    folder = config.output / collection.name
    with ExitStack() as stack:
        if config.dry_run:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="ultimate-embedder-")))
        else:
            remove_leftovers(folder)
            scratch = folder
        loaded = load_chunks(collection, scratch / ".chunks.arrow.partial", emit)
        stack.callback(loaded.table.remove)
        if not loaded.found:
            return "skipped_no_chunks"
        if config.dry_run:
            return "planned"
        if not len(loaded.table):
            raise NoVectorsError(f"all {loaded.found} records were rejected; 'rejected' says why")
        for plan in passes:
            store = VectorStore(folder / "store", plan.identity)
            run_pass(plan, collection.name, loaded.table, store, encoders, emit)
        points = Points(collection.name, target, loaded.table, store)
        for file, position in points.without_vector():
            emit(ChunkRejected(collection=collection.name, rejected=Rejected(file, position, NO_VECTOR)))
        if not len(points):
            raise NoVectorsError(f"the model gave no usable vector for any of {len(loaded.table)} chunks")
        write_exports(points, folder, config.exports, emit)
    return "completed"
