"""How much disk space a run needs, by the estimates that the run itself checks before it starts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ultimate_embedder.chunks import ChunkTable
from ultimate_embedder.config import RunConfig
from ultimate_embedder.export import estimate_export_bytes, measure_payloads
from ultimate_embedder.planned import PlannedCollection, PlannedDisk
from ultimate_embedder.types import VectorSpec
from ultimate_embedder.vectors import row_dtype

TOKEN_BYTES = 4


def store_bytes(new_texts: int, dim: int) -> int:
    """What the store takes for new vectors."""
    return new_texts * int(row_dtype(dim).itemsize)


def export_bytes(
    collection: str, table: ChunkTable, vectors: Sequence[VectorSpec], config: RunConfig, sparse_bytes: int | None
) -> dict[str, int]:
    """What each export takes; they are written beside those of earlier runs, and then replace them."""
    if not len(table):
        return {}
    payloads = replace(measure_payloads(collection, table), graph=config.hnsw)
    return {kind: estimate_export_bytes([kind], payloads, vectors, sparse_bytes) for kind in config.exports}


def planned_disk(
    folder: Path, collections: Sequence[PlannedCollection], scratch_bytes: int, download_bytes: int, cache: Path
) -> PlannedDisk:
    """What is needed and what is free, where the output will be; models count if their cache is on the same disk."""
    store = sum(each.store_bytes for each in collections)
    exports = sum(size for each in collections for size in each.export_bytes.values())
    here = _existing(folder)
    same_disk = _existing(cache).stat().st_dev == here.stat().st_dev
    needed = store + exports + scratch_bytes + (download_bytes if same_disk else 0)
    free = shutil.disk_usage(here).free
    return PlannedDisk(
        folder=str(here),
        store_bytes=store,
        export_bytes=exports,
        scratch_bytes=scratch_bytes,
        download_bytes=download_bytes,
        needed_bytes=needed,
        free_bytes=free,
        fits=needed <= free,
    )


def _existing(path: Path) -> Path:
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
