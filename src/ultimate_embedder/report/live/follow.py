"""Follow `events.jsonl` while a run writes it: complete lines only, and from the beginning when it is another log."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ultimate_embedder.events import Event
from ultimate_embedder.report.replay import LARGEST_LOG, UNREADABLE, parse_event

BLOCK_BYTES = 1 << 20
LARGEST_LINE = 2 << 20  # events have some kilobytes
HEAD_BYTES = 512  # the first event has the time of the run in it


@dataclass
class Follower:
    """Reads what was added to a log since it was last read."""

    path: Path
    damaged_lines: int = 0
    exists: bool = False
    """Whether there was a log when it was last read; a pipe or a device in its place is none."""
    _inode: int | None = None
    _offset: int = 0
    _head: bytes = b""
    _rest: bytes = b""
    """The beginning of a line whose end is not there yet."""
    _skipping: bool = False
    """Whether the line at hand is too long to be an event."""

    def is_another(self) -> bool:
        """Whether the log is not the one that was read: then it is read from its beginning."""
        descriptor = self._open()
        if descriptor is None:
            return False
        try:
            found = os.fstat(descriptor)
            same = found.st_ino == self._inode and found.st_size >= self._offset
            same = same and _read_at(descriptor, len(self._head), 0) == self._head
            if not same:
                self._begin(found.st_ino)
            return not same
        finally:
            os.close(descriptor)

    def read(self) -> Iterator[Event]:
        """The events that were added, up to the end of the log. What cannot be read is counted and left out."""
        descriptor = self._open()
        if descriptor is None:
            return
        try:
            while self._offset < LARGEST_LOG and (block := _read_at(descriptor, BLOCK_BYTES, self._offset)):
                if self._offset < HEAD_BYTES:
                    self._head = (self._head + block)[:HEAD_BYTES]
                self._offset += len(block)
                yield from self._events(block)
        finally:
            os.close(descriptor)

    def _begin(self, inode: int) -> None:
        self._inode, self._offset, self._head = inode, 0, b""
        self._rest, self._skipping, self.damaged_lines = b"", False, 0

    def _open(self) -> int | None:
        """Raises `OSError`, unless there is no log. Does not wait for what writes to a pipe."""
        self.exists = False
        try:
            descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        self.exists = True
        return descriptor

    def _events(self, block: bytes) -> Iterator[Event]:
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
                self.damaged_lines += 1
                continue
            try:
                event = parse_event(line)
            except UNREADABLE:
                self.damaged_lines += 1
                continue
            if event is not None:
                yield event
        if len(self._rest) > LARGEST_LINE:
            self._rest, self._skipping = b"", True


def _read_at(descriptor: int, count: int, offset: int) -> bytes:
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, count)
