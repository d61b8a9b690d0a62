"""Open chunk files: only regular files, compressed or not, in whichever Unicode encoding they are."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ultimate_embedder.chunks.formats.compressed import LONGEST_MAGIC, Decompressed, compression_of

DAMAGED = "ultimate_embedder.damaged"  # the name of an error handler
NOT_A_CHARACTER = "\udfff"  # a record that contains it is rejected


def open_file(path: Path) -> io.BufferedReader:
    """Open a regular file for reading. A named pipe or a device, which may never end, is an OSError."""
    # without blocking: opening a named pipe waits for a writer
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a named pipe, a socket or a device")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


@contextlib.contextmanager
def open_text(path: Path, newline: str = "\n") -> Iterator[TextIO]:
    """Open a text file, decompressing it if it is compressed; bytes that are no characters become lone surrogates.

    Of a compressed file that is damaged, the text before the damage is read; then the block ends with an OSError.
    """
    with _open_plain(path) as start:
        encoding = _encoding(start.read(4))
    with _open_plain(path) as plain:
        yield io.TextIOWrapper(plain, encoding=encoding, errors=_error_handler(encoding), newline=newline)
        if isinstance(plain.raw, Decompressed) and plain.raw.error is not None:
            raise plain.raw.error


def _open_plain(path: Path) -> io.BufferedReader:
    """Open a file; if it is compressed, its content."""
    raw = open_file(path)
    try:
        kind = compression_of(raw.read(LONGEST_MAGIC))
        raw.seek(0)
        return io.BufferedReader(Decompressed(raw, kind)) if kind else raw
    except BaseException:
        raw.close()
        raise


def _encoding(start: bytes) -> str:
    # two or four NUL bytes are no beginning of UTF-32, but what a crash leaves of a file
    blank = start.startswith(b"\0\0") and not (start.startswith(b"\0\0\0") or start == b"\0\0\xfe\xff")
    return "utf-8" if blank or not start.strip(b"\0") else json.detect_encoding(start)


def _error_handler(encoding: str) -> str:
    if encoding.startswith("utf-8"):
        return "surrogateescape"
    codecs.register_error(DAMAGED, _replace_damaged)
    return DAMAGED


def _replace_damaged(error: UnicodeError) -> tuple[str | bytes, int]:
    """Keep lone surrogates as they are; replace what is no character at all, such as half of one at the end."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    try:
        return codecs.lookup_error("surrogatepass")(error)
    except UnicodeDecodeError:
        return NOT_A_CHARACTER, error.end
