"""Find the collections below a folder: its subfolders that contain chunk files."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ultimate_embedder.chunks.formats import chunk_file_names, find_format
from ultimate_embedder.config import suggest
from ultimate_embedder.output import Output
from ultimate_embedder.types import Collection

MOST_COUNTED = 10_000  # files that are no chunk files, where there are no others
MOST_LISTED = 8


@dataclass(frozen=True)
class Discovery:
    """The collections that were found, requested names that were not, and warnings about skipped folders."""

    collections: tuple[Collection, ...]
    missing: tuple[str, ...]
    warnings: tuple[str, ...]
    nothing_found: str | None = None
    """Where there are no collections: what was looked for, where, and what is there instead."""


def find_collections(root: Path, wanted: tuple[str, ...] = (), skip: Path | None = None) -> Discovery:
    """Find every collection below `root`, or only the `wanted` ones; the folder `skip` is not searched."""
    warnings: list[str] = []
    if root.is_file():
        collections = [Collection(_stem(root), root.parent, (root,))]
    else:
        collections = _collections_below(root, skip, warnings)
    found = _select(tuple(collections), wanted, warnings)
    if found.collections:
        return found
    if collections:
        return dataclasses.replace(found, nothing_found=_none_of(wanted, root, collections, skip))
    return dataclasses.replace(found, nothing_found=f"no chunk files below {root}: {_instead(root, skip)}")


def _collections_below(root: Path, skip: Path | None, warnings: list[str]) -> list[Collection]:
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
        files = tuple(sorted(file for file in _walk(folder, skip, warnings) if is_chunk_file(file)))
        if files:
            collections.append(Collection(folder.name, folder, files))
        else:
            warnings.append(f"{folder}: skipped, as it has no chunk files (named {chunk_file_names()})")
    return collections


def is_chunk_file(path: Path) -> bool:
    """Whether a file is a chunk file, by its name."""
    return not path.name.startswith(".") and find_format(path) is not None and path.is_file()


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


def _none_of(wanted: tuple[str, ...], root: Path, collections: list[Collection], skip: Path | None) -> str:
    """Say that the collections that were asked for are not there, and what is."""
    there = _first_few([collection.name for collection in collections])
    message = f"none of the collections that were asked for is below {root}: {', '.join(wanted)}. There are: {there}"
    folders = [root / name for name in wanted if root.is_dir() and _may_enter(root / name, skip)]
    return ". ".join([message, *(f"{folder} has no chunk files: {_instead(folder, skip)}" for folder in folders)])


def _instead(folder: Path, skip: Path | None) -> str:
    """What was looked for below a folder that has no chunk files, and which files are there instead."""
    unreadable: list[str] = []
    visible = (file for file in _walk(folder, skip, unreadable) if not file.name.startswith(".") and file.is_file())
    suffixes = Counter(file.suffix.lower() for file in itertools.islice(visible, MOST_COUNTED + 1))
    more = " (not all were counted)" if suffixes.total() > MOST_COUNTED else ""
    by_count = sorted(suffixes.items(), key=lambda item: (-item[1], item[0] == "", item[0]))
    kinds = [f"{count} {suffix or 'without a suffix'}" for suffix, count in by_count]
    found = f"{_first_few(kinds)}{more}, which are not chunk files" if kinds else "no files"
    refused = f"; cannot be listed: {len(unreadable)} of the folders" if unreadable else ""
    return f"looked for {chunk_file_names()}; found {found}{refused}"


def _first_few(words: list[str]) -> str:
    more = len(words) - MOST_LISTED
    return ", ".join(words[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def _walk(top: Path, skip: Path | None, warnings: list[str]) -> Iterator[Path]:
    """Yield what is below `top` and is not entered, following links but never into a folder a second time."""
    seen: set[tuple[int, int]] = set()
    pending = [top]
    while pending:
        folder = pending.pop()
        status = folder.stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in _entries(folder, warnings):
            if _may_enter(entry, skip):
                pending.append(entry)
            else:
                yield entry


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
