"""The declaration of a chunk file format. Each format module has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ultimate_embedder.terminal import printable
from ultimate_embedder.types import Rejected

Record = tuple[int, Any]  # position in the file, counted from 0, and the parsed value

LARGEST_RECORD = 64 << 20  # characters of JSON, or bytes in Parquet; Qdrant takes half of it in one request
MOST_KEYS = 8
LONGEST_KEY = 60


@dataclass(frozen=True)
class ChunkFormat:
    """A chunk file format: which files have it, and the function that reads them."""

    name: str
    patterns: tuple[str, ...]
    """File name patterns, for messages."""
    matches: Callable[[Path], bool]
    """Whether a path has this format, by its name."""
    read: Callable[[Path, str], Iterator[Record | Rejected]]
    """Yields every record of the file at a path; the second argument is the name for `Rejected`. May raise OSError."""
    tabular: bool = False
    """Whether all records of a file have the same keys: its columns."""


def named(*patterns: str) -> Callable[[Path], bool]:
    """A function that tests whether a file name matches one of the patterns, ignoring case."""

    def matches(path: Path) -> bool:
        return any(fnmatchcase(path.name.lower(), pattern) for pattern in patterns)

    return matches


def first_keys(keys: Iterable[str]) -> str:
    """The first keys of an object, or columns of a file, for messages."""
    names = [printable(key[:LONGEST_KEY]) + ("..." if len(key) > LONGEST_KEY else "") for key in keys]
    more = f" and {len(names) - MOST_KEYS} more" if len(names) > MOST_KEYS else ""
    return ", ".join(names[:MOST_KEYS]) + more or "none"
