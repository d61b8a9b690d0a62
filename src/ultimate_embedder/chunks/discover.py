"""Find the collections of a run: subfolders that contain chunk files, files that were named, what a pattern matches."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ultimate_embedder.chunks.formats import chunk_file_names, find_format, stem
from ultimate_embedder.chunks.layouts import is_dataset, known_layout
from ultimate_embedder.chunks.left_out import LeftOut, count_suffixes, first_few, how_to_chunk, some_of
from ultimate_embedder.config import expand_pattern, is_pattern, suggest
from ultimate_embedder.errors import UsageError
from ultimate_embedder.names import same_name
from ultimate_embedder.output import LOCK_NAME, Output, collection_name_problem
from ultimate_embedder.terminal import valid_unicode
from ultimate_embedder.types import Collection


@dataclass(frozen=True)
class Discovery:
    """The collections that were found, requested names that were not, and warnings about what is left out."""

    collections: tuple[Collection, ...]
    missing: tuple[str, ...]
    warnings: tuple[str, ...]
    nothing_found: str | None = None
    """Where there are no collections: what was looked for, where, and what is there instead."""


def find_collections(
    inputs: Path | Iterable[Path],
    wanted: tuple[str, ...] = (),
    skip: Path | None = None,
    name: str | None = None,
) -> Discovery:
    """Find every collection of the inputs, or only the `wanted` ones; the folder `skip` is not searched.

    With a `name`, all that is found is one collection of that name.
    """
    given = [inputs] if isinstance(inputs, Path) else list(inputs)
    search = _Search(skip)
    named = _named_paths(given)
    collections = [each for path, matched in named for each in _collections_of(path, matched, search)]
    if name is not None and collections:
        collections = [_together(collections, name)]
    found = _select(tuple(collections), tuple(map(valid_unicode, wanted)), search)
    if found.collections:
        return found
    places = first_few([str(path) for path in given])
    if collections:
        return dataclasses.replace(found, nothing_found=_none_of(wanted, given, places, collections, skip))
    instead = _instead([path for path, _ in named], skip)
    return dataclasses.replace(found, nothing_found=f"no chunk files below {places}: {instead}")


def _named_paths(given: list[Path]) -> list[tuple[Path, bool]]:
    """The files and folders that are meant, each once, and whether only a pattern matches it."""
    named: dict[str, tuple[Path, bool]] = {}
    for path in given:
        for found in expand_pattern(path):
            first, matched = named.get(os.path.abspath(found), (found, True))  # noqa: PTH100 - a link stays a link
            named[os.path.abspath(found)] = first, matched and is_pattern(path)  # noqa: PTH100
    return list(named.values())


def _collections_of(path: Path, matched: bool, search: _Search) -> list[Collection]:
    """The collections of one input; a file that was named, not `matched` by a pattern, is read whatever its name is."""
    if path.is_dir():
        return _collections_below(path, search)
    is_meant = not matched or search.is_chunk_file(path)
    return [_collection(_name_of(path), path, path.parent, (path,))] if is_meant else []


def _collections_below(root: Path, search: _Search) -> list[Collection]:
    name = root.resolve().name or "chunks"
    if is_dataset(root):  # its subfolders, if it has any, are splits
        files = search.chunk_files(root)
        return [_collection(name, root, root, files)] if files else []
    entries = search.entries(root)
    folders = sorted(entry for entry in entries if search.may_enter(entry))
    collections = []
    if direct := tuple(sorted(file for file in entries if file not in folders and search.is_chunk_file(file))):
        while any(same_name(folder.name) == same_name(name) for folder in folders):
            name += "-root"
        collections.append(_collection(name, root, root, direct))
    for folder in folders:
        if files := search.chunk_files(folder):
            collections.append(_collection(folder.name, folder, folder, files))
        else:
            search.warnings.append(f"{folder}: skipped, as it has no chunk files (named {chunk_file_names()})")
    return collections


def _collection(name: str, named: Path, folder: Path, files: tuple[Path, ...]) -> Collection:
    """A collection with this name, which is that of the file or folder `named`."""
    problem = collection_name_problem(name)
    sentence = f"its name {problem}. Rename {named}." if problem else None
    return Collection(valid_unicode(name), folder, files, sentence)


def _together(collections: Sequence[Collection], name: str) -> Collection:
    """All files as one collection, each once, named by their paths below the folder that holds all."""
    try:
        folder = Path(os.path.commonpath([collection.folder.resolve() for collection in collections]))
    except ValueError:
        raise UsageError(f"--name {name}: the inputs are on different drives. Copy them to one.") from None
    files = dict.fromkeys(file.resolve().parent / file.name for each in collections for file in each.files)
    return Collection(name, folder, tuple(files))


def is_chunk_file(path: Path) -> bool:
    """Whether a file is a chunk file, by its name and, if that does not tell, by its content."""
    return _Search(None).is_chunk_file(path)


def _select(collections: tuple[Collection, ...], wanted: tuple[str, ...], search: _Search) -> Discovery:
    if not wanted:
        left = search.left_out.sentence() if collections else None
        return Discovery(collections, (), (*search.warnings, *([left] if left else [])))
    names = [collection.name for collection in collections]
    missing = tuple(name for name in wanted if name not in names)
    chosen = tuple(collection for collection in collections if collection.name in wanted)
    starts = tuple(f"{collection.folder}{end}" for collection in chosen for end in (":", os.sep))
    about_chosen = [message for message in search.warnings if message.startswith(starts)]
    if left := search.left_out.below([collection.folder for collection in chosen]).sentence():
        about_chosen.append(left)
    absent = [f"collection {name} does not exist.{suggest(name, names)}" for name in missing]
    return Discovery(chosen, missing, (*about_chosen, *absent))


def _none_of(
    wanted: tuple[str, ...], given: list[Path], places: str, collections: list[Collection], skip: Path | None
) -> str:
    """Say that the collections that were asked for are not there, and what is."""
    there = first_few([collection.name for collection in collections])
    message = f"none of the collections that were asked for is below {places}: {', '.join(wanted)}. There are: {there}"
    candidates = [root / name for root in given for name in wanted if root.is_dir()]
    folders = [folder for folder in candidates if _Search(skip).may_enter(folder)]
    return ". ".join([message, *(f"{folder} has no chunk files: {_instead([folder], skip)}" for folder in folders)])


def _instead(roots: list[Path], skip: Path | None) -> str:
    """What was looked for where there are no chunk files, and which files are there instead."""
    search = _Search(skip)
    below = (file for root in roots for file in (search.walk(root) if root.is_dir() else [root]))
    visible = (file for file in below if not file.name.startswith(".") and os.path.isfile(file))  # noqa: PTH113
    files = some_of(visible)
    found = f"{count_suffixes(files)}, which are not chunk files" if files else "no files"
    refused = f"; cannot be listed: {search.unlisted} of the folders" if search.unlisted else ""
    return f"looked for {chunk_file_names()}; found {found}{refused}{how_to_chunk(files)}"


@dataclass
class _Search:
    """A walk through folders, and what is to be said about those that are not entered."""

    skip: Path | None
    warnings: list[str] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
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
        """Everything in a folder that may be a chunk file, or hold some."""
        layout = known_layout(folder, self._listed(folder))
        for path, reason in layout.left_out:
            self.left_out.add(path, reason)
        return layout.entries

    def chunk_files(self, folder: Path) -> tuple[Path, ...]:
        """The chunk files below a folder, in a fixed order."""
        return tuple(sorted(file for file in self.walk(folder) if self.is_chunk_file(file)))

    def is_chunk_file(self, path: Path) -> bool:
        """Whether a file is a chunk file, or might be if it could be read; if not, it is noted."""
        # os.path: unlike Path.is_dir it does not raise for a file in a folder without permission
        if path.name.startswith(".") or os.path.isdir(path):  # noqa: PTH112
            return False
        found = find_format(path)
        reason = found.not_chunks(path) if found else None
        if found is not None and reason is None:
            return True
        self.left_out.add(path, reason)
        return False

    def _listed(self, folder: Path) -> list[Path]:
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


def _name_of(file: Path) -> str:
    name = stem(file)
    return name.removesuffix("_chunks") or name
