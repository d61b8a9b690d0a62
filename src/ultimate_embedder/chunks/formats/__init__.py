"""The list of chunk file formats, used by discovery, reading and messages."""

from __future__ import annotations

from pathlib import Path

from ultimate_embedder.chunks.formats import arrow, delimited, json_lines, parquet, whole_json
from ultimate_embedder.chunks.formats.compressed import DecompressionError
from ultimate_embedder.chunks.formats.format import (
    COMPRESSED,
    LONGEST_KEY,
    ChunkFormat,
    Record,
    first_keys,
    named,
    uncompressed_name,
)
from ultimate_embedder.chunks.formats.guess import guess_suffix
from ultimate_embedder.chunks.formats.opened import open_text

__all__ = [
    "FORMATS",
    "LONGEST_KEY",
    "ChunkFormat",
    "DecompressionError",
    "Record",
    "chunk_file_names",
    "find_format",
    "first_keys",
    "guess_format",
    "guess_suffix",
    "is_tabular",
    "named",
    "open_text",
    "stem",
    "uncompressed_name",
]

FORMATS: tuple[ChunkFormat, ...] = (
    whole_json.FORMAT,
    json_lines.FORMAT,
    delimited.FORMAT,
    parquet.FORMAT,
    arrow.FORMAT,
)


def find_format(path: Path) -> ChunkFormat | None:
    """The format of a file, by its name; None if it is not a chunk file."""
    return next((each for each in FORMATS if each.matches(path)), None)


def guess_format(path: Path) -> ChunkFormat:
    """The format of a file whose name does not tell, by its first bytes. May raise OSError."""
    return find_format(Path(path.name + guess_suffix(path))) or whole_json.FORMAT


def is_tabular(path: Path) -> bool:
    """Whether all records of a file have the same keys: its columns."""
    found = find_format(path)
    return found is not None and found.tabular


def chunk_file_names() -> str:
    """The file name patterns of chunk files, for messages."""
    *others, last = [pattern for each in FORMATS for pattern in each.patterns]
    return f"{', '.join(others)} or {last}" if others else last


def stem(path: Path) -> str:
    """The name of a file without the suffixes of its format and compression."""
    known = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return known.stem
