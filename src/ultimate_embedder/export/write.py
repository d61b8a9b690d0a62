"""Write the exports that were asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ultimate_embedder.config import ExportKind
from ultimate_embedder.events import Emit, ExportStarted, ExportWritten
from ultimate_embedder.export import jsonl, npy, parquet, qdrant
from ultimate_embedder.export.points import Points
from ultimate_embedder.files import file_sha256, folder_sha256, size_bytes, write_json
from ultimate_embedder.types import ExportedFile

# name in the output folder, and what writes it; each is whole or absent
WRITERS: dict[ExportKind, tuple[str, Callable[[Points, Path], None]]] = {
    "npy": ("embeddings.npy", npy.write),
    "parquet": ("chunks.parquet", parquet.write),
    "jsonl": ("points.jsonl", jsonl.write),
    "qdrant": ("qdrant", qdrant.write),
}


JOURNAL = "store/exports.json"  # what the exports were made of, so that equal ones are not written again


def write_exports(points: Points, folder: Path, kinds: Sequence[ExportKind], emit: Emit) -> None:
    """Write each kind of export into `folder`, unless it is there and would be the same."""
    journal = _read_journal(folder)
    for kind in kinds:
        started = time.perf_counter()
        emit(ExportStarted(collection=points.collection, kind=kind))
        name, write = WRITERS[kind]
        path = folder / name
        noted = journal.get(kind)
        if noted is None or noted["identity"] != points.identity or not _is_there(path, noted["size_bytes"]):
            write(points, path)
            checksum = folder_sha256(path) if path.is_dir() else file_sha256(path)
            noted = {"identity": points.identity, "size_bytes": size_bytes(path), "sha256": checksum}
            journal[kind] = noted
            write_json(folder / JOURNAL, journal)
        exported = ExportedFile(kind, path, noted["size_bytes"], noted["sha256"], len(points))
        seconds = time.perf_counter() - started
        emit(ExportWritten(collection=points.collection, exported=exported, seconds=seconds))


def _read_journal(folder: Path) -> dict[str, Any]:
    try:
        journal: dict[str, Any] = json.loads((folder / JOURNAL).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return journal


def _is_there(path: Path, expected_bytes: int) -> bool:
    return path.exists() and size_bytes(path) == expected_bytes
