"""Follow `events.jsonl` while a run writes it: new lines, and that it began anew."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ultimate_embedder.files import NO_FOLLOW

READ_BYTES = 4 << 20
LARGEST_LINE = 16 << 20
HEAD_BYTES = 512  # the first line has the time of the start: another run begins with other bytes


class LogFollower:
    """Reads what is new each time it is asked. Links and pipes in the place of the log are not read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._head = b""
        self._offset = 0

    def read(self) -> Iterator[bytes | None]:
        """New complete lines; None where the log is another one than before, and what was read counts no more."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | NO_FOLLOW)
        except OSError:
            if self._file is not None:
                self._file, self._head, self._offset = None, b"", 0
                yield None
            return
        try:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode):
                yield from self._read(descriptor, found)
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, found: os.stat_result) -> Iterator[bytes | None]:
        here = (found.st_dev, found.st_ino)
        head = os.pread(descriptor, HEAD_BYTES, 0)
        if here != self._file or found.st_size < self._offset or not head.startswith(self._head):
            is_first = self._file is None
            self._file, self._offset = here, 0
            if not is_first:
                yield None
        self._head = head
        while block := os.pread(descriptor, READ_BYTES, self._offset):
            end = block.rfind(b"\n") + 1
            while not end and len(block) < LARGEST_LINE:
                more = os.pread(descriptor, READ_BYTES, self._offset + len(block))
                if not more:
                    return  # the last line is still being written
                block += more
                end = block.rfind(b"\n") + 1
            end = end or len(block)  # longer than any event: its pieces cannot be read
            self._offset += end
            yield from block[:end].split(b"\n")[: -1 if block[end - 1 : end] == b"\n" else None]
