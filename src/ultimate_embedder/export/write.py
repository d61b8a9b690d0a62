"""Write the exports that were asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ultimate_embedder.config import ExportKind
from ultimate_embedder.events import Emit, ExportStarted, ExportWritten
from ultimate_embedder.export import jsonl, npy, parquet, qdrant
from ultimate_embedder.export.points import Points
from ultimate_embedder.files import file_sha256, folder_sha256, size_bytes
from ultimate_embedder.types import ExportedFile

# name in the output folder, and what writes it; each is whole or absent
WRITERS: dict[ExportKind, tuple[str, Callable[[Points, Path], None]]] = {
    "npy": ("embeddings.npy", npy.write),
    "parquet": ("chunks.parquet", parquet.write),
    "jsonl": ("points.jsonl", jsonl.write),
    "qdrant": ("qdrant", qdrant.write),
}


def write_exports(points: Points, folder: Path, kinds: Sequence[ExportKind], emit: Emit) -> None:
    """Write each kind of export into `folder`."""
    for kind in kinds:
        started = time.perf_counter()
        emit(ExportStarted(collection=points.collection, kind=kind))
        name, write = WRITERS[kind]
        path = folder / name
        write(points, path)
        exported = ExportedFile(
            kind=kind,
            path=path,
            size_bytes=size_bytes(path),
            sha256=folder_sha256(path) if path.is_dir() else file_sha256(path),
            rows=len(points),
        )
        seconds = time.perf_counter() - started
        emit(ExportWritten(collection=points.collection, exported=exported, seconds=seconds))
