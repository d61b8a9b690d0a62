"""The Hugging Face cache: find models in it and check that they are complete."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOUNT_DEPTH = 5
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
    for file in files:
        path = folder / file.name
        if not path.is_file():
            yield f"{file.name} is missing"
        elif file.size is not None and path.stat().st_size != file.size:
            yield f"{file.name} has {path.stat().st_size} of {file.size} bytes"
    yield from _structural_problems(folder)


def read_file_list(repo: Path, commit: str) -> list[HubFile]:
    """The file list of a download of that commit; empty if another program downloaded it."""
    try:
        entries = json.loads((repo / FILE_LISTS / f"{commit}.json").read_text("utf-8"))
    except (OSError, ValueError):
        return []
    return [HubFile(**entry) for entry in entries]


def read_safetensors_header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file; ValueError if the file is truncated."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > size - 8:
            raise ValueError("the header is truncated")
        header: dict[str, Any] = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    if 8 + length + max(ends, default=0) != size:
        raise ValueError(f"it has {size} bytes and should have {8 + length + max(ends, default=0)}")
    return header


def _snapshots(repo: Path, revision: str | None) -> Iterator[Snapshot]:
    for commit in _commits(repo, revision):
        folder = repo / "snapshots" / commit
        if folder.is_dir():
            yield Snapshot(folder, commit, tuple(problems_of(folder, read_file_list(repo, commit))))


def _commits(repo: Path, revision: str | None) -> Iterator[str]:
    if revision:
        yield revision
        return
    main = repo / "refs" / "main"
    if main.is_file():
        yield main.read_text("utf-8").strip()
    elif (repo / "snapshots").is_dir():  # copied without refs
        yield from sorted((path.name for path in (repo / "snapshots").iterdir()), reverse=True)


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
        shards = set(json.loads(index.read_text("utf-8")).get("weight_map", {}).values())
    except (OSError, ValueError):
        yield f"{index.relative_to(folder)} is damaged"
        return
    for shard in sorted(shards):
        same_format = any(index.parent.glob(f"*{Path(shard).suffix}"))
        if same_format and not (index.parent / shard).is_file():
            yield f"{(index.parent / shard).relative_to(folder)} is missing"


def _missing_modules(folder: Path) -> Iterator[str]:
    try:
        modules = json.loads((folder / "modules.json").read_text("utf-8"))
    except FileNotFoundError:
        return
    except ValueError:
        yield "modules.json is damaged"
        return
    for module in modules:
        needs_config = re.search(r"\.(Pooling|Dense|Transformer)$", module["type"])
        if needs_config and module["path"] and not (folder / module["path"] / "config.json").is_file():
            yield f"{module['path']}/config.json is missing"
