"""A lock for file systems that have none: a file that is created exclusively and refreshed while its process lives.

The file says who holds it: machine, processes and when they started. It is stale, and may be taken over,

- at once, if it is of this machine and none of its processes is alive;
- after `STALE_S` without a refresh, if it is of another machine, by the clock of the file system.

A process that finds that its lock was taken over (it was suspended, or cut off from the file system) is told so.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ultimate_embedder.files import atomic_file, open_itself, temporary_path
from ultimate_embedder.machine import machine_identity, process_start
from ultimate_embedder.state import read_content
from ultimate_embedder.stop import looking

REFRESH_S = 20.0
STALE_S = 300.0


class HeldElsewhereError(Exception):
    """A live lock of another process; the message says whose, to follow 'in use by'."""


@dataclass(frozen=True)
class _Record:
    """What the file says."""

    token: str
    host: str
    machine: str
    since: str
    processes: tuple[tuple[int, str | None], ...]
    """Process ids, and when each started."""

    @property
    def is_here(self) -> bool:
        return self.machine == machine_identity()

    @property
    def is_alive(self) -> bool:
        """Whether one of the processes is; only for those of this machine."""
        return any(started is not None and process_start(pid) == started for pid, started in self.processes)

    def __str__(self) -> str:
        return f"process {self.processes[0][0] if self.processes else '?'} on {self.host} since {self.since}"


class Heartbeat:
    """The lock of one file, for one process."""

    def __init__(self, path: Path, on_lost: Callable[[str], None]) -> None:
        self._path = path
        self._on_lost = on_lost
        self.token = uuid.uuid4().hex

    @contextlib.contextmanager
    def held(self) -> Iterator[str | None]:
        """Hold the lock for the block; gives a sentence if it was taken over. Raises `HeldElsewhereError`."""
        taken = None
        while not self._create():
            if taken := self._take_over():
                break
        with self._refreshed():
            yield taken

    @contextlib.contextmanager
    def shared(self, token: str) -> Iterator[None]:
        """Hold a lock of this token together with the process that has it. Raises `HeldElsewhereError`."""
        self.token = token
        record = self._read()
        if record is None or record.token != token:
            raise HeldElsewhereError(str(record or "another process"))
        self._write(replace(record, processes=(*record.processes, _this_process())))
        with self._refreshed():
            yield

    def refuse_if_held(self) -> None:
        """Raise `HeldElsewhereError` if another process holds the lock; a stale one is removed."""
        if self._why_stale():
            self._path.unlink(missing_ok=True)

    def holder(self) -> str | None:
        """Who holds the lock, as far as can be told without writing; None if nobody does, or a process that is dead."""
        record = self._read()
        if record is None:
            return None
        if record.is_here:
            return str(record) if record.is_alive else None
        try:
            age_s = time.time() - self._path.lstat().st_mtime
        except FileNotFoundError:  # released in the meantime
            return None
        return str(record) if age_s <= STALE_S else None

    def _create(self) -> bool:
        try:
            descriptor = open_itself(self._path, os.O_WRONLY | os.O_EXCL)
        except FileExistsError:
            return False
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_encoded(self._own()))
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
        return True

    def _take_over(self) -> str | None:
        """Replace a stale lock; of several processes that try at a time, one does. None if it was released."""
        if self._why_stale() is None:
            return None
        guard = self._path.with_name(f"{self._path.name}-taken-over")
        try:
            os.close(open_itself(guard, os.O_WRONLY | os.O_EXCL))
        except FileExistsError:
            if self._age_s(guard) > STALE_S:  # of a process that was killed at this very place
                guard.unlink(missing_ok=True)
            raise HeldElsewhereError("a process that takes over the lock of a dead one right now") from None
        try:
            why = self._why_stale()  # nor was it taken over in the meantime
            if why is not None:
                self._write(self._own())
        finally:
            guard.unlink(missing_ok=True)
        return why

    def _why_stale(self) -> str | None:
        """Why the lock may be taken over, in a sentence; None if there is none. May raise `HeldElsewhereError`."""
        if not os.path.lexists(self._path):  # also a link that leads nowhere
            return None
        record, age_s = self._read(), self._age_s(self._path)
        holder = str(record) if record else "another process"
        if record is not None and record.is_here:
            if record.is_alive:
                raise HeldElsewhereError(holder)
            return f"the lock of {holder} was taken over: that process is dead"
        if age_s <= STALE_S:
            left = max(1, round((STALE_S - age_s) / 60))
            raise HeldElsewhereError(f"{holder} (if it is dead: its lock can be taken over in {left} min)")
        return f"the lock of {holder} was taken over: it was not refreshed for {age_s / 60:.0f} min"

    def _age_s(self, path: Path) -> float:
        """Seconds since a file was refreshed, by the clock of the file system: those of machines may differ."""
        probe = temporary_path(path)
        try:
            os.close(open_itself(probe, os.O_WRONLY | os.O_EXCL))
            return probe.stat().st_mtime - path.lstat().st_mtime
        except FileNotFoundError:  # released in the meantime: the next look will tell
            return 0.0
        finally:
            probe.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _refreshed(self) -> Iterator[None]:
        try:
            with looking(self._refresh, REFRESH_S, "heartbeat"):
                yield
        finally:
            self._release()

    def _refresh(self) -> bool:
        """Refresh the lock; False if it is not ours any more."""
        record = self._read()
        if record is not None and record.token != self.token:
            self._on_lost("another process has taken over the lock, as it was not refreshed in time")
            return False
        with contextlib.suppress(OSError):  # the file system is away: the next time, or somebody takes it over
            os.utime(self._path)
        return True

    def _release(self) -> None:
        record = self._read()
        if record is None or record.token != self.token:
            return
        rest = replace(record, processes=tuple(each for each in record.processes if each != _this_process()))
        with contextlib.suppress(OSError):  # it is stale as soon as this process has ended
            if rest.is_alive:
                self._write(rest)
            else:
                self._path.unlink(missing_ok=True)

    def _own(self) -> _Record:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        return _Record(self.token, socket.gethostname(), machine_identity(), since, (_this_process(),))

    def _write(self, record: _Record) -> None:
        with atomic_file(self._path) as file:
            file.write(_encoded(record))

    def _read(self) -> _Record | None:
        """None if there is no lock, or one that is not readable (yet)."""
        try:
            content = read_content(self._path)
            if not isinstance(content, bytes):
                return None
            found = json.loads(content)
            processes = tuple((int(pid), started) for pid, started in found["processes"])
            token, host, machine, since = (str(found[name]) for name in ("token", "host", "machine", "since"))
            return _Record(token, host, machine, since, processes)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


def _encoded(record: _Record) -> bytes:
    return json.dumps(asdict(record)).encode()


def _this_process() -> tuple[int, str | None]:
    return os.getpid(), process_start(os.getpid())
