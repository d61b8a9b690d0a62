"""What the program knows about a format of chunk files. Each format module declares one of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ultimate_embedder.types import Rejected

Record = tuple[int, Any]  # position in the file, counted from 0, and the parsed value


@dataclass(frozen=True)
class ChunkFormat:
    """One format of chunk files: which files are of it, and what reads them."""

    name: str
    patterns: tuple[str, ...]
    """How its files are named, for messages."""
    matches: Callable[[Path], bool]
    """Whether a path is of this format, by its name alone."""
    read: Callable[[Path, str], Iterator[Record | Rejected]]
    """Yields every record of the file at a path; the name stands in each `Rejected`. May raise OSError."""


def named(*patterns: str) -> Callable[[Path], bool]:
    """A test whether a path's name matches one of the patterns; upper and lower case are the same."""

    def matches(path: Path) -> bool:
        return any(fnmatchcase(path.name.lower(), pattern) for pattern in patterns)

    return matches


def printable(text: str) -> str:
    """The text with what is not Unicode in it spelled out, so that it can be written down."""
    return text.encode(errors="backslashreplace").decode()
