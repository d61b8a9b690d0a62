"""One writer per output folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ultimate_embedder.errors import OutputError
from ultimate_embedder.files import open_itself
from ultimate_embedder.heartbeat import Heartbeat, HeldElsewhereError
from ultimate_embedder.output import Output, link_target

# what flock answers on a file system without locks: NFS without its lock service, Lustre, some FUSE file systems
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
WAITS_S = (0.02, 0.05, 0.1, 0.2)  # before a lock counts as held: `find_holder` has it for a moment
RETRY_S = 0.02


@dataclass(frozen=True)
class HeldOutput:
    """A locked output folder."""

    descriptor: int
    """The open lock file. A child that inherits it holds the lock too."""
    token: str | None = None
    """On a file system without locks: with it a child can hold the lock too, see `share_output`."""
    notes: tuple[str, ...] = ()
    """What the user should know about the lock."""


@dataclass(frozen=True)
class Holder:
    """Who writes to an output, if anybody does."""

    words: str | None
    """`process 12 since ...`; None if nobody does."""
    is_copy: bool = False
    """Whether the folder was copied from elsewhere, so that the run that wrote it cannot be seen here."""


def _ignore(message: str) -> None:
    """Discard a message."""


@contextlib.contextmanager
def hold_output(
    output: Path, report: Callable[[str], None] = _ignore, on_lost: Callable[[str], None] = _ignore
) -> Iterator[HeldOutput]:
    """Lock the output folder for the block. The operating system releases the lock of a process that died.

    `report` gets a sentence if the lock file cannot be closed; `on_lost`, if another process has taken over a lock that
    this one did not refresh, which is possible only on a file system without locks.
    """
    descriptor = _open(output)
    try:
        with contextlib.ExitStack() as stack:
            held = _lock(output, descriptor, stack, on_lost)
            _write_holder(output, descriptor)
            yield held
    finally:
        try:
            os.close(descriptor)
        except OSError as error:  # of a network file system; everything else is written and synced
            report(
                f"the lock file of {output} could not be closed: {error.strerror}. The lock is released all the same."
            )


@contextlib.contextmanager
def share_output(output: Path, token: str | None, on_lost: Callable[[str], None] = _ignore) -> Iterator[None]:
    """Hold the output together with the process that started this one, and after it, if it ends first."""
    with contextlib.ExitStack() as stack:
        if token is not None:  # else the open lock file was inherited, and the lock with it
            try:
                stack.enter_context(Heartbeat(Output(output).held_path, on_lost).shared(token))
            except HeldElsewhereError as held:
                raise OutputError(f"{output} is in use by {held}.") from held
        yield


def find_holder(output: Path) -> Holder:
    """Find out who writes to an output; nothing is written. A lock that can be had is nobody's."""
    path = Output(output).lock_path
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:  # it was left out of a copy, or is not ours to read
        return Holder(None, is_copy=True)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Holder(None, is_copy=True)
        _try_lock(descriptor, shared=True)
        if _noted(descriptor).get("inode") != os.fstat(descriptor).st_ino:
            return Holder(None, is_copy=True)
        return Holder(Heartbeat(Output(output).held_path, _ignore).holder())
    except BlockingIOError:
        return Holder(_holder(descriptor))
    except OSError:
        return Holder(None, is_copy=True)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def briefly_locked(path: Path, wait_s: float) -> Iterator[None]:
    """Hold a lock file for the block, for a file that several processes change; raises `BlockingIOError` after a while.

    On a file system without locks nothing is locked: files are replaced as a whole there too, but a change may be lost.
    """
    descriptor = open_itself(path, os.O_RDWR)
    try:
        until = time.monotonic() + wait_s
        while True:
            try:
                _try_lock(descriptor)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                time.sleep(RETRY_S)
        yield
    finally:
        os.close(descriptor)


def _open(output: Path) -> int:
    path = Output(output).lock_path
    try:
        output.mkdir(parents=True, exist_ok=True)
        if target := link_target(path):
            raise OutputError(f"{path} is a link to {target}, and must be a file of its own. Remove the link.")
        return open_itself(path, os.O_RDWR)
    except OSError as error:
        raise OutputError(f"cannot write to {output}: {error.strerror}. Choose another --output.") from error


def _lock(output: Path, descriptor: int, stack: contextlib.ExitStack, on_lost: Callable[[str], None]) -> HeldOutput:
    heartbeat = Heartbeat(Output(output).held_path, on_lost)
    try:
        problem = _try_lock_again(descriptor)
        if problem is None:
            heartbeat.refuse_if_held()  # by a process that sees this folder through a file system without locks
            return HeldOutput(descriptor)
        notes = [f"{output} is on a file system without locks ({problem}): a file with a heartbeat is the lock"]
        if taken := stack.enter_context(heartbeat.held()):
            notes.append(taken)
        return HeldOutput(descriptor, heartbeat.token, tuple(notes))
    except BlockingIOError:
        holder = _holder(descriptor)
    except HeldElsewhereError as held:
        holder = str(held)
    except OSError as error:
        raise OutputError(f"cannot lock {output}: {error.strerror}. Choose another --output.") from error
    raise OutputError(f"{output} is in use by {holder}. Wait until it ends, or choose another --output.")


def _write_holder(output: Path, descriptor: int) -> None:
    # the inode tells this file from a copy of it
    inode = os.fstat(descriptor).st_ino
    holder = {"pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S"), "inode": inode}
    try:
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, json.dumps(holder).encode())
    except OSError as error:
        raise OutputError(
            f"cannot write to {output}: {error.strerror}. Free disk space, or choose another --output."
        ) from error


def _holder(descriptor: int) -> str:
    noted = _noted(descriptor)
    return f"process {noted['pid']} since {noted['since']}" if {"pid", "since"} <= noted.keys() else "another process"


def _noted(descriptor: int) -> dict[str, Any]:
    """What the lock file says of its holder; of the last one, if nobody holds it."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        noted = json.loads(os.read(descriptor, 4096))
    except (ValueError, RecursionError, OSError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _try_lock_again(descriptor: int) -> str | None:
    """Lock the file, with a few tries; raises `BlockingIOError` if another process has it all the time."""
    for wait_s in WAITS_S:
        try:
            return _try_lock(descriptor)
        except BlockingIOError:
            time.sleep(wait_s)
    return _try_lock(descriptor)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int, *, shared: bool = False) -> str | None:
        """Lock the file, or raise `BlockingIOError`."""
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # beyond the content, which other processes may read
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError from error
        return None
else:
    import fcntl

    def _try_lock(descriptor: int, *, shared: bool = False) -> str | None:
        """Lock the file, or raise `BlockingIOError`; gives the reason where the file system has no locks."""
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            return error.strerror or str(error.errno)
        return None
