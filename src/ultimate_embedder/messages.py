"""Messages between a process and its child: a pickle with its length in front. Imports next to nothing."""

from __future__ import annotations

import os
import pickle
from typing import Any, NoReturn

LENGTH_BYTES = 8
READ_BYTES = 1 << 20


def write_message(file: int, message: Any) -> None:
    """Send an object to the other process."""
    content = pickle.dumps(message)
    for part in (len(content).to_bytes(LENGTH_BYTES, "big"), content):
        left = memoryview(part)
        while left:
            left = left[os.write(file, left) :]


def read_message(file: int) -> Any:
    """The next object that the other process has sent; None when it has ended."""
    length = _read(file, LENGTH_BYTES)
    content = _read(file, int.from_bytes(length, "big")) if length else b""
    return pickle.loads(content) if content else None


def claim_pipes() -> tuple[int, int]:
    """In a child: the files to read messages from and to write them to. What else is printed goes to standard error."""
    channel = os.dup(1)
    os.dup2(2, 1)
    return 0, channel


def leave(code: int) -> NoReturn:
    """In a child: end at once. Everything is written; cleaning up could only hang or abort."""
    os._exit(code)


def _read(file: int, size: int) -> bytes:
    parts, missing = [], size
    while missing:
        part = os.read(file, min(missing, READ_BYTES))
        if not part:
            return b""
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
