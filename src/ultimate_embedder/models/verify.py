"""Checksums of models: one for all files of a model, and whether each file is what the hub says it is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from ultimate_embedder.files import file_sha256
from ultimate_embedder.models.hub_cache import HubFile, Snapshot, problems_of, read_file_list
from ultimate_embedder.models.hub_client import file_damage

SHA256 = re.compile(r"[0-9a-f]{64}")
SHA1 = re.compile(r"[0-9a-f]{40}")


def files_digest(folder: Path) -> str:
    """One checksum over the names and contents of a model's files.

    Large files in a Hugging Face cache are links to blobs that are named after their sha256: no need to read them.
    """
    digest = hashlib.sha256()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = path.resolve().name
        content = name if path.is_symlink() and SHA256.fullmatch(name) else file_sha256(path)
        digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def verify_snapshot(snapshot: Snapshot) -> Iterator[str]:
    """Read every byte, and say which files are not what they should be."""
    repo = snapshot.path.parents[1] if len(snapshot.path.parents) > 1 else snapshot.path
    files = read_file_list(repo, snapshot.commit)
    yield from problems_of(snapshot.path, files)
    listed = {file.name: file.sha256 for file in files}
    for path in sorted(each for each in snapshot.path.rglob("*") if each.is_file()):
        name = path.relative_to(snapshot.path).as_posix()
        blob = path.resolve().name if path.is_symlink() else ""
        sha256 = listed.get(name) or (blob if SHA256.fullmatch(blob) else None)
        known = HubFile(name, None, sha256, blob)
        if (sha256 or SHA1.fullmatch(blob)) and (damage := file_damage(path, known)):
            yield f"{name} is damaged: {damage}"
