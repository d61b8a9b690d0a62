"""Atomic writes: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

TEMPORARY_PATTERN = ".*.partial"
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that appears at `path` only when the block ends without an exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` when the block ends without an exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in sorted(temporary.rglob("*")):
            if file.is_file():
                with open(file, "rb") as handle:
                    os.fsync(handle.fileno())
        discarded = _temporary(path)
        if os.path.lexists(path):  # also a link that leads nowhere
            path.rename(discarded)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)
    with contextlib.suppress(OSError):  # the next run removes it
        remove(discarded)


def remove(path: Path) -> None:
    """Delete a file, a folder with everything in it, or a link; what a link points to is left alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def open_itself(path: Path, flags: int) -> int:
    """Open or create a file to write to; fails for a link, and for a pipe that nobody reads."""
    return os.open(path, flags | os.O_CREAT | NO_FOLLOW, 0o666)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files and folders of a killed run."""
    for leftover in folder.glob(TEMPORARY_PATTERN):
        remove(leftover)


def is_temporary(name: str) -> bool:
    """Whether a file or folder of that name is one that is still being written, or was left behind by a killed run."""
    return fnmatch.fnmatch(name, TEMPORARY_PATTERN)


def safe_name(word: str) -> str:
    """A name that is valid in every file system and in Qdrant."""
    return re.sub(r"[^\w.-]+", "_", word).strip("_")


def write_json(path: Path, data: Any) -> None:
    """Write indented JSON atomically."""
    with atomic_file(path) as file:
        file.write(json.dumps(data, indent=2, ensure_ascii=False).encode(errors="backslashreplace") + b"\n")


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable, on platforms that can sync a folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows cannot open folders, and does not need to sync them
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """Checksum of one file, read in blocks."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def folder_sha256(folder: Path) -> str:
    """One checksum over the relative names and contents of all files below `folder`."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(folder).as_posix()}\0{file_sha256(file)}\n".encode())
    return digest.hexdigest()


def size_bytes(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
