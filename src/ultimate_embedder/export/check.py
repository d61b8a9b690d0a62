"""Whether an export is what was written: intact, opened, changed by its users, or damaged."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ultimate_embedder.errors import OutputError
from ultimate_embedder.export.format import UnreadableError
from ultimate_embedder.export.formats import find_export
from ultimate_embedder.files import file_sha256, folder_sha256, size_bytes

if TYPE_CHECKING:
    from ultimate_embedder.export.format import PointBatches


@dataclass(frozen=True)
class ExportState:
    """What is wrong with an export, or worth knowing of one that is right; both follow its path in a sentence."""

    problem: str | None = None
    remark: str | None = None


@dataclass(frozen=True)
class KeptChanges:
    """What others have changed in an export that is replaced: where it is kept, and a sentence about it."""

    path: Path | None
    words: str


def check_export(folder: Path, kind: str, noted: dict[str, Any], points: PointBatches | None = None) -> ExportState:
    """Compare an export with the journal of its collection; `points` are those that it was made of, if they are known.

    Raises `OutputError` if it was changed and there is no room to look at it.
    """
    path = folder / noted["name"]
    if not path.exists():
        return ExportState(problem="is missing")
    if _has_same_bytes(path, kind, noted):
        return ExportState()
    compare = find_export(kind).find_changes
    if compare is None or not path.is_dir():
        return ExportState(problem="is damaged or was changed (its checksum does not match)")
    try:
        changes = compare(path, points)
    except UnreadableError as error:
        return ExportState(problem=f"is damaged: {error}")
    if not changes.ours_intact:
        return ExportState(problem=f"is damaged or was changed since it was written: {changes.words}")
    changed = f"was changed since it was written: {changes.words}"
    return ExportState(remark=changed if changes.words else "was opened since it was written")


def keep_changes(folder: Path, kind: str, noted: dict[str, Any]) -> KeptChanges | None:
    """Move an export aside that is about to be replaced, if others have changed it; None if nothing would be lost."""
    path = folder / noted["name"]
    compare = find_export(kind).find_changes
    if compare is None or path.is_symlink() or not path.is_dir() or _has_same_bytes(path, kind, noted):
        return None
    try:
        changes = compare(path, None)
    except UnreadableError as error:
        return KeptChanges(None, f"The earlier one was damaged: {error}")
    except OutputError as error:
        return _move_aside(path, f"cannot be compared with what was written ({error})")
    return _move_aside(path, f"was changed since it was written ({changes.words})") if changes.words else None


def describe_bytes(path: Path, kind: str) -> dict[str, Any]:
    """Size and checksum of an export, for the journal."""
    return _describe_bytes(path, find_export(kind).passing_files)


def _describe_bytes(path: Path, without: Collection[str], *, end_zeros: bool = False) -> dict[str, Any]:
    checksum = folder_sha256(path, without, end_zeros=end_zeros) if path.is_dir() else file_sha256(path)
    return {"size_bytes": size_bytes(path, without), "sha256": checksum}


def _has_same_bytes(path: Path, kind: str, noted: dict[str, Any]) -> bool:
    """As it was written by this version, or by earlier ones: they hashed zeros at ends, and once what passes."""
    passing = find_export(kind).passing_files
    there = path.is_dir() and any(any(path.rglob(name)) for name in passing)
    ways: list[tuple[Collection[str], bool]] = [(passing, False), (passing, True), *([((), True)] if there else [])]
    return any(
        size_bytes(path, without) == noted.get("size_bytes")  # cheaper, and enough to tell most apart
        and _describe_bytes(path, without, end_zeros=end_zeros)["sha256"] == noted.get("sha256")
        for without, end_zeros in (ways if path.is_dir() else ways[:1])
    )


def _move_aside(path: Path, what: str) -> KeptChanges:
    number = 1
    while (aside := path.with_name(f"{path.name}-changed-{number}")).exists():
        number += 1
    path.rename(aside)
    return KeptChanges(aside, f"The earlier one {what}: it is kept as {aside}, for you to use or delete.")
