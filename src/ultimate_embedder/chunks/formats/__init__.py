"""The list of chunk file formats, used by discovery, reading and messages."""

from __future__ import annotations

from pathlib import Path

from ultimate_embedder.chunks.formats import json_lines, parquet, whole_json
from ultimate_embedder.chunks.formats.format import LONGEST_KEY, ChunkFormat, Record, first_keys, named

__all__ = [
    "FORMATS",
    "LONGEST_KEY",
    "ChunkFormat",
    "Record",
    "chunk_file_names",
    "find_format",
    "first_keys",
    "is_tabular",
    "named",
]

FORMATS: tuple[ChunkFormat, ...] = (whole_json.FORMAT, json_lines.FORMAT, parquet.FORMAT)


def find_format(path: Path) -> ChunkFormat | None:
    """The format of a file, by its name; None if it is not a chunk file."""
    return next((each for each in FORMATS if each.matches(path)), None)


def is_tabular(path: Path) -> bool:
    """Whether all records of a file have the same keys: its columns."""
    found = find_format(path)
    return found is not None and found.tabular


def chunk_file_names() -> str:
    """The file name patterns of chunk files, for messages."""
    *others, last = [pattern for each in FORMATS for pattern in each.patterns]
    return f"{', '.join(others)} or {last}" if others else last
