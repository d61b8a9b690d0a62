"""Atomic writes: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from ultimate_embedder.errors import OutputError

# what `temporary_path` makes, and the chunk table of a run; nothing else is ours to delete
TEMPORARY_NAME = re.compile(r"\.(chunks\.arrow|.+\.[0-9a-f]{8})\.partial")
COPY_BYTES = 1 << 20
ZEROS = bytes(COPY_BYTES)
LINKED_BYTES = 1 << 20  # smaller files are copied: some of them are replaced on loading
WRITE_S = 60.0  # no state file takes longer to write
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that appears at `path` only when the block ends without an exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
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
    temporary = temporary_path(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in sorted(temporary.rglob("*")):
            if file.is_file():
                with open(file, "rb") as handle:
                    os.fsync(handle.fileno())
            elif file.is_dir():
                sync_folder(file)
        discarded = temporary_path(path)
        if os.path.lexists(path):  # also a link that leads nowhere
            path.rename(discarded)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)
    with contextlib.suppress(OSError):  # the next run removes it
        delete(discarded)


def open_itself(path: Path, flags: int) -> int:
    """Open or create a file to write to; fails for a link, and for a pipe that nobody reads."""
    return os.open(path, flags | os.O_CREAT | NO_FOLLOW, 0o666)


def remove_leftovers(folder: Path, unlocked: str | None = None) -> None:
    """Delete the temporary files and folders of a killed run; never a link, as no run makes one.

    The file `unlocked` may just be written by a process that does not lock the output: only old ones of it are deleted.
    """
    for leftover in folder.glob(".*.partial"):
        if leftover.is_symlink() or not is_temporary(leftover.name):
            continue
        if unlocked and leftover.name.startswith(f".{unlocked}.") and time.time() - leftover.stat().st_mtime < WRITE_S:
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink(missing_ok=True)


def delete(path: Path) -> None:
    """Delete a file, a link, or a folder with all that is in it; nothing happens if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """Whether a file or folder of that name is one that is still being written, or was left behind by a killed run."""
    return TEMPORARY_NAME.fullmatch(name) is not None


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
    with open(path, "rb") as file:
        return _sha256(file, sys.maxsize)


def folder_sha256(folder: Path, without: Collection[str] = (), *, end_zeros: bool = True) -> str:
    """One checksum over the relative names and contents of all files below `folder`, but those of these names.

    Without `end_zeros`, the size of a file stands for the zeros at its end: files of a Qdrant shard have 32 MiB, of
    which a small collection uses a thousandth.
    """
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in without):
        content = file_sha256(file) if end_zeros else _size_and_sha256(file)
        digest.update(f"{file.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def _size_and_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        *_, (_, data_end) = [(0, 0), *_data_ranges(path, size)]
        used = size - (size - data_end) // COPY_BYTES * COPY_BYTES  # holes need not be read
        while used:
            start = max(0, used - COPY_BYTES)
            file.seek(start)
            if file.read(used - start) != ZEROS[: used - start]:
                break  # the block is hashed whole
            used = start
        file.seek(0)
        return f"{size}\0{_sha256(file, used)}"


def _sha256(file: IO[bytes], size: int) -> str:
    digest = hashlib.sha256()
    while size > 0 and (block := file.read(min(size, COPY_BYTES))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()


def size_bytes(path: Path, without: Collection[str] = ()) -> int:
    """Bytes of a file, or of all files below a folder, but those of these names."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and file.name not in without)


def disk_bytes(path: Path) -> int:
    """Bytes that a folder takes on the disk: the holes of sparse files take none."""
    files = [file.stat() for file in path.rglob("*") if file.is_file()]
    return sum(getattr(each, "st_blocks", -(-each.st_size // 512)) * 512 for each in files)


def first_oddity(folder: Path) -> Path | None:
    """What is below a folder and neither file nor folder: a link, which may lead anywhere, a pipe, a device."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_symlink() or not (path.is_file() or path.is_dir()))
    return next(found, None)


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder so that the copy can be written to, wherever it is from; holes in files stay holes."""
    target.mkdir(parents=True)
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir()
        else:
            copy_file(path, copy)


@contextlib.contextmanager
def scratch_copy(source: Path) -> Iterator[Path]:
    """A copy of a folder in the system's temporary folder, for the block; raises `OutputError` if it has no room."""
    with tempfile.TemporaryDirectory(prefix="ultimate-embedder-") as scratch:
        copy = Path(scratch) / source.name
        needed, free = size_bytes(source), shutil.disk_usage(scratch).free  # in memory, holes that are read take room
        if needed > free:
            raise _no_room(source, copy.parent, needed, free)
        try:
            copy_folder(source, copy)
        except OSError as error:
            raise OutputError(f"{source} cannot be copied to {copy.parent} to be read: {error.strerror}") from error
        yield copy


@contextlib.contextmanager
def scratch_links(source: Path) -> Iterator[Path]:
    """The same for who does not write: large files are hard links where that is possible, so that it takes no time.

    It is in the system's temporary folder if that is on the same disk, else beside the folder, else a copy.
    """
    for scratch in (Path(tempfile.gettempdir()) / f"ultimate-embedder-{uuid.uuid4().hex}", temporary_path(source)):
        if not _can_link(source, scratch.parent):
            continue
        try:
            _link_folder(source, scratch)
        except OSError:  # a disk without links, or nothing may be written here
            shutil.rmtree(scratch, ignore_errors=True)
            continue
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return
    with scratch_copy(source) as copy:
        yield copy


def _can_link(source: Path, parent: Path) -> bool:
    return parent.stat().st_dev == source.stat().st_dev and os.access(parent, os.W_OK)


def _link_folder(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir()
        elif path.stat().st_size < LINKED_BYTES:
            copy_file(path, copy)
        elif os.access(path, os.W_OK):  # who maps a file into memory may open it for writing even to read it
            os.link(path, copy)
        else:
            raise PermissionError(f"{path} cannot be opened for writing")


def _no_room(source: Path, folder: Path, needed: int, free: int) -> OutputError:
    return OutputError(
        f"{source} is read from a copy of {needed / 1e6:.0f} MB, and {folder} has {free / 1e6:.0f} MB "
        "free. Set TMPDIR to a folder with more room"
    )


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file; holes stay holes, and are not read."""
    with open(source, "rb") as reading, open(target, "wb") as writing:
        size = os.fstat(reading.fileno()).st_size
        for start, end in _data_ranges(source, size):
            reading.seek(start)
            writing.seek(start)
            while start < end and (block := reading.read(min(COPY_BYTES, end - start))):
                if block.strip(b"\0"):
                    writing.write(block)
                else:
                    writing.seek(len(block), os.SEEK_CUR)
                start += len(block)
        writing.truncate(size)


def _data_ranges(path: Path, size: int) -> Iterator[tuple[int, int]]:
    """Where each part of a file that is no hole begins and ends; all of it, where the system does not tell."""
    if not hasattr(os, "SEEK_DATA"):
        yield 0, size
        return
    end = 0
    with open(path, "rb", buffering=0) as file:  # not the reader's: it would be moved behind its back
        while end < size:
            start = end
            try:
                start = file.seek(end, os.SEEK_DATA)
                end = file.seek(start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole is left
                    return
                end = size
            yield start, end


def temporary_path(path: Path) -> Path:
    """A name beside `path` that no other writer uses, and that is removed at the next start if it is left behind."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
