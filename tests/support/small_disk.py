"""A real small file system, for tests of full and of read-only disks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

KEPT = ".ballast"


@contextlib.contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[Path]:
    """Mount a file system of this size; skips the test where that is not allowed."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def make_read_only(folder: Path) -> None:
    """Mount it again, without the right to write."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def fill(folder: Path, left_bytes: int) -> None:
    """Leave so much room."""
    with open(folder / KEPT, "wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, shutil.disk_usage(folder).free - left_bytes)


def make_room(folder: Path) -> None:
    """Take the ballast away."""
    (folder / KEPT).unlink()
