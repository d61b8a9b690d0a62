"""Find the collections below a folder: its subfolders that contain chunk files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ultimate_embedder.chunks.formats import chunk_file_names, find_format
from ultimate_embedder.config import suggest
from ultimate_embedder.output import Output
from ultimate_embedder.types import Collection


@dataclass(frozen=True)
class Discovery:
    """The collections that were found, requested names that were not, and warnings about skipped folders."""

    collections: tuple[Collection, ...]
    missing: tuple[str, ...]
    warnings: tuple[str, ...]


def find_collections(root: Path, wanted: tuple[str, ...] = (), skip: Path | None = None) -> Discovery:
    """Find every collection below `root`, or only the `wanted` ones; the folder `skip` is not searched."""
    if root.is_file():
        return _select((Collection(_stem(root), root.parent, (root,)),), wanted, [])
    warnings: list[str] = []
    name = root.resolve().name or "chunks"
    entries = _entries(root, warnings)
    folders = sorted(entry for entry in entries if _may_enter(entry, skip))
    collections = []
    if direct := tuple(sorted(file for file in entries if is_chunk_file(file))):
        while any(folder.name == name for folder in folders):
            name += "-root"
        collections.append(Collection(name, root, direct))
    warnings += [f"{entry}: skipped, as it is an output of ultimate-embedder" for entry in entries if _is_output(entry)]
    for folder in folders:
        files = tuple(sorted(_walk(folder, skip, warnings)))
        if files:
            collections.append(Collection(folder.name, folder, files))
        else:
            warnings.append(f"{folder}: skipped, as it has no chunk files (named {chunk_file_names()})")
    return _select(tuple(collections), wanted, warnings)


def is_chunk_file(path: Path) -> bool:
    """Whether a file is a chunk file, by its name."""
    return not path.name.startswith(".") and path.is_file() and find_format(path) is not None


def _select(collections: tuple[Collection, ...], wanted: tuple[str, ...], warnings: list[str]) -> Discovery:
    if not wanted:
        return Discovery(collections, (), tuple(warnings))
    names = [collection.name for collection in collections]
    missing = tuple(name for name in wanted if name not in names)
    chosen = tuple(collection for collection in collections if collection.name in wanted)
    about_chosen = [
        message for message in warnings if any(message.startswith(str(collection.folder)) for collection in chosen)
    ]
    absent = [f"collection {name} does not exist.{suggest(name, names)}" for name in missing]
    return Discovery(chosen, missing, (*about_chosen, *absent))


def _walk(top: Path, skip: Path | None, warnings: list[str]) -> Iterator[Path]:
    """Yield the chunk files below `top`, following links, but entering each folder only once."""
    seen: set[tuple[int, int]] = set()
    pending = [top]
    while pending:
        folder = pending.pop()
        status = folder.stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in _entries(folder, warnings):
            if is_chunk_file(entry):
                yield entry
            elif _may_enter(entry, skip):
                pending.append(entry)


def _entries(folder: Path, warnings: list[str]) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder)]
    except OSError as error:
        warnings.append(f"{folder}: skipped, as it cannot be listed ({error.strerror})")
        return []


def _may_enter(entry: Path, skip: Path | None) -> bool:
    if entry.name.startswith(".") or not entry.is_dir():
        return False
    if skip is not None and entry.resolve() == skip.resolve():
        return False
    return not _is_output(entry)


def _is_output(folder: Path) -> bool:
    # os.path: unlike Path.exists it does not raise for a folder without permission
    return os.path.exists(Output(folder).lock_path)  # noqa: PTH110


def _stem(file: Path) -> str:
    return file.stem.removesuffix("_chunks") or file.stem
