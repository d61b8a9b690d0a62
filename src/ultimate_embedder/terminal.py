"""Text on its way to a person. Names, ids and answers of servers come from outside and may hold anything.

`show` is how this program prints, so that no text can steer the terminal, forge a line or fail a run.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import unicodedata
from typing import IO

PACKAGE_LOGGER = "ultimate_embedder"
"""The logger of what this program says; it says it to loggers only if it has a level of its own."""
LIBRARY_LEVELS = {logging.INFO: logging.WARNING}
"""The level of libraries' messages, where it is not ours: what they call information is of no use to most."""
HIDDEN = frozenset(["Cc", "Cf", "Cs", "Zl", "Zp"])
"""Categories of characters that steer a terminal or cannot be seen: control, direction, surrogates, line ends."""
FURTHER_LINE = "\n  | "  # what is shown before a further line of the same text, so that it cannot pass for one of ours
# the reader has exited or the terminal is gone; Windows calls a broken pipe EINVAL
CLOSED = frozenset([errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET, errno.ESHUTDOWN, errno.EINVAL])
_USER_INFO = re.compile(r"(?<=://)[^\s/]*@")


def counted(number: int, thing: str) -> str:
    """`1 chunk`, `1,204 chunks`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def valid_unicode(text: str) -> str:
    """The text with invalid Unicode escaped, so that it can be stored: names of files may be any bytes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def is_hidden(character: str) -> bool:
    """Whether a character steers a terminal, or cannot be seen."""
    return unicodedata.category(character) in HIDDEN


def printable(text: str, *, lines: bool = False) -> str:
    """The text with hidden characters escaped, and no user or password in its URLs; `lines` keeps its lines."""
    text = without_user(text)
    return FURTHER_LINE.join(map(_escape, text.rstrip("\n").split("\n"))) if lines else _escape(text)


def without_user(text: str) -> str:
    """The text without user names and passwords in its URLs."""
    return _USER_INFO.sub("", text)


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(_escaped(character) if is_hidden(character) else character for character in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def encodable(text: str, stream: IO[str]) -> str:
    """The text with an escape for each character that the stream cannot show."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def show(text: str, stream: IO[str] | None) -> None:
    """Print text that may come from outside."""
    write_line(printable(text, lines=True), stream)


def write_line(text: str, stream: IO[str] | None) -> None:
    """Print a line as it is. A stream that is closed is no error: the work goes on, and its exit code stands."""
    if stream is None or getattr(stream, "closed", False):
        return
    try:
        print(encodable(text, stream), file=stream, flush=True)
    except OSError as error:
        if error.errno not in CLOSED:
            raise
        discard(stream)


def discard(stream: IO[str]) -> None:
    """Redirect a stream to the null device, so that what is left in its buffer does no harm."""
    with contextlib.suppress(OSError, ValueError):  # it has no file
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
