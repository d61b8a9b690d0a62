"""Open the store of a pass, and report what the user should know about its content."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from ultimate_embedder.config import RunConfig
from ultimate_embedder.errors import OutputError
from ultimate_embedder.events import Emit, Warned
from ultimate_embedder.execution.cluster.shared_output import adopt_leftovers
from ultimate_embedder.output import Output
from ultimate_embedder.planning import PassPlan
from ultimate_embedder.types import PassIdentity, VectorSpec
from ultimate_embedder.vectors import VectorStore, earlier_identities, fingerprint

NUMBER_BYTES = 4  # float32
SPARSE_BYTES = 8 * 256  # an index and a value for each of 256 words, as SPLADE models give for a paragraph


def open_store(plan: PassPlan, collection: str, config: RunConfig, emit: Emit) -> VectorStore:
    """The pass's store below a collection's folder, with what an earlier output has of it."""
    root = Output(config.output).collection(collection).store
    if config.fresh:
        shutil.rmtree(root / fingerprint(plan.identity), ignore_errors=True)
    others = earlier_identities(root)
    store = VectorStore(root, plan.identity)
    store.notes += adopt_leftovers(store)  # of nodes of a cluster, for a driver that was killed
    taken_over = [_resume(store, collection, config.resume_from)] if config.resume_from is not None else []
    same_model = [other for other in others if other.model == plan.identity.model and other != plan.identity]
    if store.is_empty and same_model:
        store.notes.append(f"a new pass is started: {_difference(same_model[-1], plan.identity)}")
    for note in (*store.notes, *filter(None, taken_over)):
        emit(Warned(collection=collection, message=note))
    return store


def _resume(store: VectorStore, collection: str, output: Path) -> str | None:
    """Copy what an earlier output has of the pass; gives what to tell about it."""
    earlier = Output(output).collection(collection).store
    if not earlier.is_dir():
        return None
    try:
        return f"{store.copy_from(earlier)} vectors of the same pass were taken over from {earlier}"
    except OutputError as error:  # of a newer version: of no use, and no reason to stop
        return f"no vectors were taken over from {earlier}: {error}"


def _difference(before: PassIdentity, now: PassIdentity) -> str:
    old, new = dataclasses.asdict(before), dataclasses.asdict(now)
    changed = [f"{name} was {old[name]!r} and is {new[name]!r}" for name in new if old[name] != new[name]]
    return "; ".join(changed)


def vector_bytes(spec: VectorSpec) -> int:
    """What a vector takes in a store; of a sparse one, what it is expected to."""
    return NUMBER_BYTES * spec.dim if spec.dim is not None else SPARSE_BYTES


def require_room(folder: Path, needed_bytes: int, chunks: int) -> None:
    """Refuse to start what the disk cannot hold: vectors now, and each export of them later."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if needed_bytes > free:
        raise OutputError(
            f"{place} has {free / 1e9:.1f} GB free, and {needed_bytes / 1e9:.1f} GB are needed for the vectors of "
            f"{chunks} chunks and their exports. Free some, choose another --output, or fewer --export."
        )
