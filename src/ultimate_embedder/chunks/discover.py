"""Find the collections below a folder: its subfolders that contain chunk files."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ultimate_embedder.chunks.formats import chunk_file_names, find_format
from ultimate_embedder.config import suggest
from ultimate_embedder.names import same_name
from ultimate_embedder.output import LOCK_NAME, Output, collection_name_problem
from ultimate_embedder.terminal import valid_unicode
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
    search = _Search(skip)
    if root.is_file():
        collections = [_collection(_stem(root), root, root.parent, (root,))]
    else:
        collections = _collections_below(root, search)
    found = _select(tuple(collections), tuple(map(valid_unicode, wanted)), search.warnings)
    if found.collections:
        return found
    if collections:
        return dataclasses.replace(found, nothing_found=_none_of(wanted, root, collections, skip))
    return dataclasses.replace(found, nothing_found=f"no chunk files below {root}: {_instead(root, skip)}")


def _collections_below(root: Path, search: _Search) -> list[Collection]:
    name = root.resolve().name or "chunks"
    entries = search.entries(root)
    folders = sorted(entry for entry in entries if search.may_enter(entry))
    collections = []
    if direct := tuple(sorted(file for file in entries if is_chunk_file(file))):
        while any(same_name(folder.name) == same_name(name) for folder in folders):
            name += "-root"
        collections.append(_collection(name, root, root, direct))
    for folder in folders:
        files = tuple(sorted(file for file in search.walk(folder) if is_chunk_file(file)))
        if files:
            collections.append(_collection(folder.name, folder, folder, files))
        else:
            search.warnings.append(f"{folder}: skipped, as it has no chunk files (named {chunk_file_names()})")
    return collections


def _collection(name: str, named: Path, folder: Path, files: tuple[Path, ...]) -> Collection:
    """A collection with this name, which is that of the file or folder `named`."""
    problem = collection_name_problem(name)
    sentence = f"its name {problem}. Rename {named}." if problem else None
    return Collection(valid_unicode(name), folder, files, sentence)


def is_chunk_file(path: Path) -> bool:
    """Whether a file is a chunk file, by its name; one that cannot be read, such as a broken link, is one too."""
    # os.path: unlike Path.is_dir it does not raise for a file in a folder without permission
    return not path.name.startswith(".") and find_format(path) is not None and not os.path.isdir(path)  # noqa: PTH112


def _select(collections: tuple[Collection, ...], wanted: tuple[str, ...], warnings: list[str]) -> Discovery:
    if not wanted:
        return Discovery(collections, (), tuple(warnings))
    names = [collection.name for collection in collections]
    missing = tuple(name for name in wanted if name not in names)
    chosen = tuple(collection for collection in collections if collection.name in wanted)
    starts = tuple(f"{collection.folder}{end}" for collection in chosen for end in (":", os.sep))
    about_chosen = [message for message in warnings if message.startswith(starts)]
    absent = [f"collection {name} does not exist.{suggest(name, names)}" for name in missing]
    return Discovery(chosen, missing, (*about_chosen, *absent))


def _none_of(wanted: tuple[str, ...], root: Path, collections: list[Collection], skip: Path | None) -> str:
    """Say that the collections that were asked for are not there, and what is."""
    there = _first_few([collection.name for collection in collections])
    message = f"none of the collections that were asked for is below {root}: {', '.join(wanted)}. There are: {there}"
    folders = [root / name for name in wanted if root.is_dir() and _Search(skip).may_enter(root / name)]
    return ". ".join([message, *(f"{folder} has no chunk files: {_instead(folder, skip)}" for folder in folders)])


def _instead(folder: Path, skip: Path | None) -> str:
    """What was looked for below a folder that has no chunk files, and which files are there instead."""
    search = _Search(skip)
    visible = (file for file in search.walk(folder) if not file.name.startswith(".") and os.path.isfile(file))  # noqa: PTH113
    suffixes = Counter(file.suffix.lower() for file in itertools.islice(visible, MOST_COUNTED + 1))
    more = " (not all were counted)" if suffixes.total() > MOST_COUNTED else ""
    by_count = sorted(suffixes.items(), key=lambda item: (-item[1], item[0] == "", item[0]))
    kinds = [f"{count} {suffix or 'without a suffix'}" for suffix, count in by_count]
    found = f"{_first_few(kinds)}{more}, which are not chunk files" if kinds else "no files"
    refused = f"; cannot be listed: {search.unlisted} of the folders" if search.unlisted else ""
    return f"looked for {chunk_file_names()}; found {found}{refused}"


def _first_few(words: list[str]) -> str:
    more = len(words) - MOST_LISTED
    return ", ".join(words[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


@dataclass
class _Search:
    """A walk through folders, and what is to be said about those that are not entered."""

    skip: Path | None
    warnings: list[str] = field(default_factory=list)
    unlisted: int = 0

    def walk(self, top: Path) -> Iterator[Path]:
        """Yield what is below `top` and is not entered, following links but never into a folder a second time."""
        seen: set[tuple[int, int]] = set()
        pending = [top]
        while pending:
            folder = pending.pop()
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            for entry in self.entries(folder):
                if self.may_enter(entry):
                    pending.append(entry)
                else:
                    yield entry

    def entries(self, folder: Path) -> list[Path]:
        """Everything in a folder."""
        try:
            return [Path(entry.path) for entry in os.scandir(folder)]
        except OSError as error:
            self.unlisted += 1
            self.warnings.append(f"{folder}: skipped, as it cannot be listed ({error.strerror})")
            return []

    def may_enter(self, entry: Path) -> bool:
        """Whether this is a folder that may hold chunk files."""
        if entry.name.startswith(".") or not os.path.isdir(entry):  # noqa: PTH112 - see is_chunk_file
            return False
        if self.skip is not None and entry.resolve() == self.skip.resolve():
            self.warnings.append(f"{entry}: skipped, as it is the --output of this run")
            return False
        if _is_output(entry):
            self.warnings.append(f"{entry}: skipped, as it is an output of ultimate-embedder ({LOCK_NAME} is in it)")
            return False
        return True


def _is_output(folder: Path) -> bool:
    # os.path: unlike Path.exists it does not raise for a folder without permission
    return os.path.exists(Output(folder).lock_path)  # noqa: PTH110


def _stem(file: Path) -> str:
    return file.stem.removesuffix("_chunks") or file.stem
