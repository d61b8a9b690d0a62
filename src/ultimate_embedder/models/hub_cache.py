"""The Hugging Face cache: find models in it and check that they are complete."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ultimate_embedder.errors import ModelError
from ultimate_embedder.models.config_files import read_modules, read_object
from ultimate_embedder.models.paths import GIT_HASH, SHA256, file_problem, inside, is_commit, leaving_problem, shown

MOUNT_DEPTH = 5
LARGEST_FILE = 1 << 44  # bytes; larger than any disk that a model would be downloaded to
LARGEST_HEADER = 100_000_000  # bytes of the header of safetensors, as in its own reader
LONGEST_REF = 256  # bytes
FILE_LISTS = "ultimate-embedder"  # beside refs/ and snapshots/: the file list of each download


@dataclass(frozen=True)
class Snapshot:
    """A model's files at one commit, and the problems found in them."""

    path: Path
    commit: str
    problems: tuple[str, ...]


@dataclass(frozen=True)
class HubFile:
    """A file as the hub describes it."""

    name: str
    size: int | None
    sha256: str | None
    """Only of large files."""
    blob: str = ""
    """Name of its blob in the cache: the sha256, or the git hash."""

    @property
    def size_bytes(self) -> int:
        """Its size; zero if unknown."""
        return self.size or 0


def listed_file(name: Any, size: Any, sha256: Any, blob: Any) -> HubFile:
    """A file as a hub or a file list describes it; ValueError if that cannot be true."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a file is not a string: {shown(name)}")
    if problem := leaving_problem(name):
        raise ValueError(f"the name of a file {problem}: {shown(name)}")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= LARGEST_FILE:
        raise ValueError(f"the size of {shown(name)} is not a possible number of bytes: {shown(size)}")
    if sha256 is not None and not (isinstance(sha256, str) and SHA256.fullmatch(sha256)):
        raise ValueError(f"the sha256 of {shown(name)} is not 64 hexadecimal digits: {shown(sha256)}")
    if not isinstance(blob, str) or not GIT_HASH.fullmatch(blob):
        raise ValueError(f"the blob of {shown(name)} is not 40 or 64 hexadecimal digits: {shown(blob)}")
    return HubFile(name, size, sha256, blob)


def repo_folder(cache: Path, hub_id: str) -> Path:
    """Folder of a model in a cache."""
    return cache / f"models--{hub_id.replace('/', '--')}"


def find_snapshot(hub_id: str, revision: str | None, caches: Sequence[Path]) -> Snapshot | None:
    """The model's snapshot in the first cache that has one; complete snapshots first."""
    found = [snapshot for cache in caches for snapshot in _snapshots(repo_folder(cache, hub_id), revision)]
    return min(found, key=lambda snapshot: bool(snapshot.problems), default=None)


def find_mounted(hub_id: str, mounts: Sequence[Path]) -> Snapshot | None:
    """The model in read-only mounts: in a copy of a cache, or in a folder with its name."""
    name = hub_id.split("/")[-1].lower()
    for folder in (folder for mount in mounts for folder in _folders(mount, MOUNT_DEPTH)):
        if folder.name == f"models--{hub_id.replace('/', '--')}":
            if snapshot := next(_snapshots(folder, None), None):
                return snapshot
        elif name in [part.lower() for part in folder.parts] and (folder / "config.json").is_file():
            return Snapshot(folder, "", tuple(problems_of(folder)))
    return None


def problems_of(folder: Path, files: Sequence[HubFile] = ()) -> Iterator[str]:
    """Yield what is missing or damaged in a model folder. Checks sizes and headers, not checksums."""
    for link in folder.rglob("*"):
        if link.is_symlink() and not link.exists():
            yield f"{link.relative_to(folder)} is missing"
    yield from file_problems(folder, files)
    yield from _structural_problems(folder)


def file_problems(folder: Path, files: Sequence[HubFile]) -> Iterator[str]:
    """Yield which of these files are missing or have another size."""
    for file in files:
        path = folder / file.name
        if not path.is_file():
            yield f"{file.name} is missing"
        elif file.size is not None and path.stat().st_size != file.size:
            yield f"{file.name} has {path.stat().st_size} of {file.size} bytes"


def read_file_list(repo: Path, commit: str) -> list[HubFile]:
    """The file list of a download of that commit; empty if another program downloaded it, or the list is damaged."""
    if not is_commit(commit):
        return []
    try:
        entries = json.loads((repo / FILE_LISTS / f"{commit}.json").read_text("utf-8"))
        files = [listed_file(each["name"], each["size"], each["sha256"], each["blob"]) for each in entries]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [] if any(file_problem(file.name) for file in files) else files


def read_safetensors_header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file; ValueError if the file is truncated or damaged."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > size - 8:
            raise ValueError("the header is truncated")
        if length > LARGEST_HEADER:
            raise ValueError(f"its header has {length} bytes, and {LARGEST_HEADER} at most are possible")
        header = _parse_header(file.read(length))
    end = max((_data_end(name, entry) for name, entry in header.items() if name != "__metadata__"), default=0)
    if 8 + length + end != size:
        raise ValueError(f"it has {size} bytes and should have {8 + length + end}")
    return header


def _parse_header(content: bytes) -> dict[str, Any]:
    try:
        header = json.loads(content.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("its header is nested too deeply") from error
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")  # noqa: TRY004 - of the file, not of a caller
    return header


def _data_end(name: str, entry: Any) -> int:
    """Where the bytes of a tensor end."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or any(type(each) is not int for each in offsets):
        raise ValueError(f"the tensor {shown(name)} has no data_offsets of two numbers")
    if not 0 <= offsets[0] <= offsets[1]:
        raise ValueError(f"the tensor {shown(name)} has impossible data_offsets {shown(offsets)}")
    return int(offsets[1])


def _snapshots(repo: Path, revision: str | None) -> Iterator[Snapshot]:
    for commit in _commits(repo, revision):
        folder = repo / "snapshots" / commit
        if folder.is_dir():
            yield Snapshot(folder, commit, tuple(problems_of(folder, read_file_list(repo, commit))))


def _commits(repo: Path, revision: str | None) -> Iterator[str]:
    if revision:
        if is_commit(revision):  # it becomes a path, and may be of a summary from elsewhere
            yield revision
        return
    if commit := _main_commit(repo):
        yield commit
    elif (repo / "snapshots").is_dir():  # copied without refs
        names = (path.name for path in (repo / "snapshots").iterdir())
        yield from sorted(filter(is_commit, names), reverse=True)


def _main_commit(repo: Path) -> str | None:
    """The commit that refs/main names; None if there is no such file, or it names none."""
    main = repo / "refs" / "main"
    if not main.is_file():
        return None
    with open(main, "rb") as file:
        word = file.read(LONGEST_REF).decode("ascii", errors="replace").strip()
    return word if is_commit(word) else None


def _folders(top: Path, depth: int) -> Iterator[Path]:
    if depth < 0 or not top.is_dir():
        return
    yield top
    for entry in sorted(top.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            yield from _folders(entry, depth - 1)


def _structural_problems(folder: Path) -> Iterator[str]:
    if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
        yield "config.json is missing"
    weights = [path for path in folder.rglob("*.safetensors") if path.is_file()]
    if not weights and not any(path.is_file() for path in folder.rglob("pytorch_model*.bin")):
        yield "the weights are missing"
    for path in weights:
        try:
            read_safetensors_header(path)
        except (ValueError, KeyError) as error:
            yield f"{path.relative_to(folder)} is damaged: {error}"
    for index in folder.rglob("*.index.json"):
        yield from _missing_shards(folder, index)
    yield from _missing_modules(folder)


def _missing_shards(folder: Path, index: Path) -> Iterator[str]:
    try:
        shards = read_index(index)
    except ModelError:
        yield f"{index.relative_to(folder)} is damaged"
        return
    for shard in shards:
        same_format = any(index.parent.glob(f"*{Path(shard).suffix}"))
        if same_format and not (index.parent / shard).is_file():
            yield f"{(index.parent / shard).relative_to(folder)} is missing"


def read_index(index: Path) -> list[str]:
    """The files with the weights that an index names, all below its folder; `ModelError` if it is damaged."""
    weight_map = read_object(index).get("weight_map", {})
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{index} is damaged ('weight_map' has no names of files). Download or copy the model again.")
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        inside(index.parent, shard)
    return shards


def _missing_modules(folder: Path) -> Iterator[str]:
    try:
        modules = read_modules(folder)
    except ModelError as error:
        yield f"modules.json is damaged: {error}"
        return
    for module in modules:
        needs_config = re.search(r"\.(Pooling|Dense|Transformer)$", module.type)
        if needs_config and module.path and not (folder / module.path / "config.json").is_file():
            yield f"{module.path}/config.json is missing"
