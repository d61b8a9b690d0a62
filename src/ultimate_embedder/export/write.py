"""Write the requested exports."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ultimate_embedder.events import Emit, ExportStarted, ExportWritten, Warned
from ultimate_embedder.export.formats import find_export
from ultimate_embedder.export.points import Points
from ultimate_embedder.files import file_sha256, folder_sha256, remove, size_bytes, write_json
from ultimate_embedder.output import CollectionOutput, export_name_problem, replaced_link
from ultimate_embedder.types import ExportedFile


def write_exports(
    points: Points,
    folder: Path,
    kinds: Sequence[str],
    emit: Emit,
    *,
    found: int | None = None,
    fresh: bool = False,
) -> None:
    """Write each kind of export into `folder`; skips those that are up to date, unless `fresh`.

    `found`: records in the chunk files, with those that were rejected. It is kept in the journal, for a later run that
    skips the collection.
    """
    described = _describe(points, found)
    for message in misnamed_exports(folder):
        emit(Warned(collection=points.collection, message=message))
    remove_stale_exports(points, folder, kinds, emit)
    journal = read_export_journal(folder)
    for kind in kinds:
        started = time.perf_counter()
        emit(ExportStarted(collection=points.collection, kind=kind))
        export = find_export(kind)
        path = folder / export.file_name(points.vectors)
        noted = journal.get(kind)
        if fresh or noted is None or noted["identity"] != points.identity or export_problem(folder, noted):
            if link := replaced_link(path):
                emit(Warned(collection=points.collection, message=link))
            export.write(points, path)
            if noted is not None and noted["name"] != path.name:
                remove(folder / noted["name"])
            noted = {"name": path.name, "identity": points.identity, "rows": len(points)}
            noted |= {"size_bytes": size_bytes(path), "sha256": _checksum(path)}
        if journal.get(kind) != noted | described:  # records that are rejected now change the counts, not the export
            journal[kind] = noted | described
            write_json(CollectionOutput(folder).export_journal, journal)
        exported = ExportedFile(kind, path, noted["size_bytes"], noted["sha256"], len(points))
        seconds = time.perf_counter() - started
        emit(ExportWritten(collection=points.collection, exported=exported, seconds=seconds))


def has_exports(folder: Path, kinds: Sequence[str]) -> bool:
    """Whether a collection has exports of all these kinds, up to date or not."""
    journal = read_export_journal(folder)
    return bool(kinds) and all(kind in journal and (folder / journal[kind]["name"]).exists() for kind in kinds)


def _describe(points: Points, found: int | None) -> dict[str, Any]:
    """What a run that skips the collection reports of it."""
    return {
        "found": found,
        "distinct_texts": points.distinct_texts,
        "target": points.target,
        "passes": points.fingerprints,
        "vectors": [dataclasses.asdict(spec) for spec in points.vectors],
    }


def remove_stale_exports(points: Points, folder: Path, kinds: Sequence[str], emit: Emit) -> None:
    """Delete exports that are out of date and not requested now, so that they are not taken for current ones."""
    journal = read_export_journal(folder)
    stale = [kind for kind, noted in journal.items() if kind not in kinds and noted["identity"] != points.identity]
    for kind in stale:
        path = folder / journal.pop(kind)["name"]
        remove(path)
        emit(
            Warned(
                collection=points.collection,
                message=f"deleted {path}: it was out of date, and --export does not include {kind}",
            )
        )
    if stale:
        write_json(CollectionOutput(folder).export_journal, journal)


def export_problem(folder: Path, noted: dict[str, Any]) -> str | None:
    """What is wrong with an export that is listed in the journal of a collection, or None."""
    path = folder / noted["name"]
    if not path.exists():
        return "is missing"
    same = size_bytes(path) == noted["size_bytes"] and _checksum(path) == noted["sha256"]
    return None if same else "is damaged or was changed (its checksum does not match)"


def _checksum(path: Path) -> str:
    return folder_sha256(path) if path.is_dir() else file_sha256(path)


def read_export_journal(folder: Path) -> dict[str, dict[str, Any]]:
    """The journal of a collection's exports, by kind; names that are not those of exports are left out."""
    return {kind: noted for kind, noted in _journal(folder).items() if not export_name_problem(noted["name"])}


def misnamed_exports(folder: Path) -> list[str]:
    """What the journal lists under names that are not those of exports. They would lead to something else."""
    found = ((noted["name"], export_name_problem(noted["name"])) for noted in _journal(folder).values())
    path = CollectionOutput(folder).export_journal
    return [f"{path} lists an export {name!r}, which {problem}: ignored" for name, problem in found if problem]


def _journal(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        journal = json.loads(CollectionOutput(folder).export_journal.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    entries = journal.items() if isinstance(journal, dict) else ()
    return {kind: noted for kind, noted in entries if isinstance(noted, dict) and "name" in noted}
