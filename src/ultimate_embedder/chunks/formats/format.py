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

# characters of JSON or CSV, bytes in Parquet or Arrow; Qdrant takes half of it in one request
LARGEST_RECORD = 64 << 20
LARGEST_BATCH = 1 << 30  # bytes in memory: a row group of Parquet, a batch of Arrow
# of each byte of a file: what repeats more often is no collection of texts, and would fill the disk
BYTES_PER_BYTE = 256
ROWS_PER_BYTE = 64
LEAST_MOST_BYTES = 1 << 30
LEAST_MOST_ROWS = 1 << 20
COMPRESSED = (".gz", ".zst")  # suffixes that may follow those of text formats
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
    not_chunks: Callable[[Path], str | None] = lambda path: None
    """Why a file of such a name holds no chunks, as its full name or its content says; None if it may hold some."""
    tabular: bool = False
    """Whether all records of a file have the same keys: its columns."""


def named(*patterns: str, compressed: bool = False) -> Callable[[Path], bool]:
    """A function that tests whether a file name matches one of the patterns, ignoring case."""

    def matches(path: Path) -> bool:
        name = uncompressed_name(path.name) if compressed else path.name.lower()
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    return matches


def uncompressed_name(name: str) -> str:
    """The name of a file in lower case, without the suffix of its compression."""
    lower = name.lower()
    return next((lower.removesuffix(suffix) for suffix in COMPRESSED if lower.endswith(suffix)), lower)


def first_keys(keys: Iterable[str]) -> str:
    """The first keys of an object, or columns of a file, for messages."""
    names = [printable(key[:LONGEST_KEY]) + ("..." if len(key) > LONGEST_KEY else "") for key in keys]
    more = f" and {len(names) - MOST_KEYS} more" if len(names) > MOST_KEYS else ""
    return ", ".join(names[:MOST_KEYS]) + more or "none"
