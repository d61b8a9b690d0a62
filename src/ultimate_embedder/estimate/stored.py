"""What an output has already: vectors that need not be computed, and points in its exports that are gone by now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ultimate_embedder.chunks import ChunkTable, text_key
from ultimate_embedder.config import RunConfig
from ultimate_embedder.errors import OutputError, UploadError
from ultimate_embedder.execution import known_way
from ultimate_embedder.export import PointsFile, read_export_journal
from ultimate_embedder.output import CollectionOutput, Output
from ultimate_embedder.planning import PassPlan
from ultimate_embedder.vectors import KeyIndex, VectorStore, settled_identity

ROWS_AT_ONCE = 4096


def settled(plan: PassPlan, collection: str, config: RunConfig) -> PassPlan:
    """The pass as earlier runs left it: in fp32, if one of them found fp16 too narrow."""
    if config.fresh:
        return plan
    if config.min_cosine is not None and plan.kind == "dense":
        plan = known_way(plan, collection, config) or plan
    for store in _stores(collection, config):
        plan = replace(plan, identity=settled_identity(store, plan.identity))
    return plan


@dataclass(frozen=True)
class Stored:
    """Which rows of a table have a vector already."""

    mask: np.ndarray
    notes: tuple[str, ...] = ()


def find_stored(plan: PassPlan, collection: str, config: RunConfig, keys: np.ndarray) -> Stored:
    """The rows whose texts have a vector of this pass, in the output or in that of --resume-from; changes nothing."""
    mask = np.zeros(len(keys), bool)
    notes: list[str] = []
    if config.fresh or not plan.identity.model_digest:
        return Stored(mask)
    for store in _stores(collection, config):
        if not store.is_dir():
            continue
        try:
            opened = VectorStore(store, plan.identity, read_only=True)
        except OutputError as error:  # of a newer version
            notes.append(str(error))
            continue
        mask |= opened.holds(keys)
        notes += opened.notes
    return Stored(mask, tuple(notes))


@dataclass(frozen=True)
class Removed:
    """Texts and points of the last export that are not among the chunks any more; None if that is not known."""

    texts: int | None = 0
    points: int | None = 0


def find_removed(folder: Path, table: ChunkTable) -> Removed:
    """Compare the points in the exports of a collection with its chunks."""
    journal = read_export_journal(folder)
    if not journal:
        return Removed()
    if "parquet" not in journal:
        return Removed(None, None)
    try:
        exported = PointsFile.open(CollectionOutput(folder).points_file).texts(ROWS_AT_ONCE)
        ids = {chunk_id for block in table.blocks() for chunk_id in block.ids}
        points = 0
        gone: set[tuple[int, int]] = set()
        for chunk_ids, texts in exported:
            points += sum(chunk_id not in ids for chunk_id in chunk_ids)
            gone.update(map(text_key, texts))
    except UploadError:  # damaged: a run will write it again
        return Removed(None, None)
    keys = np.array(sorted(gone), np.uint64).reshape(-1, 2)
    index = KeyIndex()
    index.add(0, table.keys)
    return Removed(int((index.find(keys) < 0).sum()), points)


def _stores(collection: str, config: RunConfig) -> list[Path]:
    outputs = [config.output, *([config.resume_from] if config.resume_from else [])]
    return [Output(output).collection(collection).store for output in outputs]
