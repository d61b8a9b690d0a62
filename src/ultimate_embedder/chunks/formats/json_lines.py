"""JSON Lines: one record per line, read line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ultimate_embedder.chunks.formats.format import LARGEST_RECORD, ChunkFormat, Record, named
from ultimate_embedder.chunks.formats.json_text import BLANKS, BLOCK_CHARACTERS, decode_whole
from ultimate_embedder.chunks.formats.opened import open_text
from ultimate_embedder.types import Rejected

PATTERNS = ("*.jsonl", "*.ndjson")


def read(path: Path, name: str) -> Iterator[Record | Rejected]:
    """Yield the record of every line that is not blank; an invalid line is rejected alone."""
    blank, position, size = True, 0, 0
    with open_text(path) as file:
        while line := file.readline(LARGEST_RECORD + 1):
            size += len(line)
            blank = blank and not line.strip(BLANKS)
            if len(line) > LARGEST_RECORD and not line.endswith("\n"):
                _skip_line(file)
                reason = f"line {position + 1} has more than {LARGEST_RECORD:,} characters, which is the limit"
                yield Rejected(name, position, reason)
            else:
                yield from _read_line(line.strip(BLANKS), position, name)
            position += 1
    if blank:
        yield nothing_in(name, empty=not size)


def nothing_in(name: str, empty: bool) -> Rejected:
    """The `Rejected` of a file without records."""
    return Rejected(name, None, "the file is empty" if empty else "the file has only whitespace or NUL bytes")


def _read_line(line: str, position: int, name: str) -> Iterator[Record | Rejected]:
    if not line:
        return
    try:
        yield position, decode_whole(line)
    except json.JSONDecodeError as error:
        reason = f"line {position + 1} is not valid JSON ({error.msg.removesuffix(' at')} at column {error.colno})"
        yield Rejected(name, position, reason)
    except RecursionError:
        yield Rejected(name, position, f"line {position + 1} is nested too deeply")


def _skip_line(file: TextIO) -> None:
    while (part := file.readline(BLOCK_CHARACTERS)) and not part.endswith("\n"):
        pass


FORMAT = ChunkFormat(name="JSON Lines", patterns=PATTERNS, matches=named(*PATTERNS, compressed=True), read=read)
