"""Checksums of models: a digest of all files, and the comparison of each file with the hub's checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ultimate_embedder.files import file_sha256
from ultimate_embedder.models.hub_cache import HubFile, Snapshot, problems_of, read_file_list
from ultimate_embedder.models.hub_client import file_damage
from ultimate_embedder.models.paths import GIT_HASH, SHA256


@dataclass(frozen=True)
class ModelFile:
    """A file of a model; the name is relative to the model's folder."""

    name: str
    size_bytes: int
    sha256: str


def list_files(folder: Path) -> list[ModelFile]:
    """Every file of a model, with its checksum.

    Large files in a Hugging Face cache are links to blobs named by their sha256, so they are not read.
    """
    files = []
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = path.resolve().name
        sha256 = name if path.is_symlink() and SHA256.fullmatch(name) else file_sha256(path)
        files.append(ModelFile(path.relative_to(folder).as_posix(), path.stat().st_size, sha256))
    return files


def digest_of(files: Sequence[ModelFile]) -> str:
    """One checksum over the names and contents of a model's files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0{file.sha256}\n".encode())
    return digest.hexdigest()


def files_digest(folder: Path) -> str:
    """One checksum over the names and contents of all files below a folder."""
    return digest_of(list_files(folder))


def verify_snapshot(snapshot: Snapshot) -> Iterator[str]:
    """Yield the files of a snapshot that are missing or damaged, by their checksums."""
    yield from problems_of(snapshot.path, read_file_list(_repo(snapshot), snapshot.commit))
    for path, known in _files_with_checksums(snapshot):
        if damage := file_damage(path, known):
            yield f"{known.name} is damaged: {damage}"


def has_checksums(snapshot: Snapshot) -> bool:
    """Whether there are checksums to compare the files with."""
    return any(True for _ in _files_with_checksums(snapshot))


def _files_with_checksums(snapshot: Snapshot) -> Iterator[tuple[Path, HubFile]]:
    listed = {file.name: file.sha256 for file in read_file_list(_repo(snapshot), snapshot.commit)}
    for path in sorted(each for each in snapshot.path.rglob("*") if each.is_file()):
        name = path.relative_to(snapshot.path).as_posix()
        blob = path.resolve().name if path.is_symlink() else ""
        sha256 = listed.get(name) or (blob if SHA256.fullmatch(blob) else None)
        if sha256 or GIT_HASH.fullmatch(blob):
            yield path, HubFile(name, None, sha256, blob)


def _repo(snapshot: Snapshot) -> Path:
    return snapshot.path.parents[1] if len(snapshot.path.parents) > 1 else snapshot.path
