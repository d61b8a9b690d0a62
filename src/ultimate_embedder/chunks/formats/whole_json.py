"""JSON: a list of records, which is read in blocks; or an object that contains one, which is read into memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from ultimate_embedder.chunks.formats import json_lines
from ultimate_embedder.chunks.formats.format import ChunkFormat, Record, named
from ultimate_embedder.chunks.formats.json_content import not_chunks
from ultimate_embedder.chunks.formats.json_list import read_damaged_object, read_list
from ultimate_embedder.chunks.formats.json_object import records_of
from ultimate_embedder.chunks.formats.json_text import JsonText, decode_whole
from ultimate_embedder.chunks.formats.opened import open_text
from ultimate_embedder.types import Rejected

PATTERNS = ("*.json",)
LARGEST_OBJECT = 512 << 20  # characters; values take several times as much memory
TOO_LARGE = (
    f"the file is an object of more than {LARGEST_OBJECT:,} characters, which is the limit. "
    "Write a list or JSON Lines, which are read in blocks."
)


def read(path: Path, name: str) -> Iterator[Record | Rejected]:
    """Yield the records of the list; of a damaged file, those before the damage."""
    with open_text(path) as file:
        text = JsonText(file)
        first = text.peek()
        if not first:
            yield json_lines.nothing_in(name, empty=text.is_empty)
        elif first == "[":
            yield from read_list(text, name)
        elif (line := _line_that_is_a_value(text, first)) is None:
            rest = text.rest(LARGEST_OBJECT)
            yield from [Rejected(name, None, TOO_LARGE)] if rest is None else _read_value(rest, name)
        elif text.peek():  # JSON Lines under a .json name
            yield from json_lines.read(path, name)
        else:
            yield from _read_value(line, name)


def _line_that_is_a_value(text: JsonText, first: str) -> str | None:
    """The first line, if it is an object or a string; then `text` is behind it."""
    if first not in '{"':
        return None
    line = text.first_line()
    try:
        decode_whole(line)
    except (json.JSONDecodeError, RecursionError):
        return None
    text.at += len(line)
    return line


def _read_value(text: str, name: str) -> Iterator[Record | Rejected]:
    try:
        value = decode_whole(text)
    except json.JSONDecodeError as error:
        yield from read_damaged_object(text, name, error)
    except RecursionError:
        yield from read_damaged_object(text, name, None)
    else:
        yield from records_of(value, name) if isinstance(value, dict) else [(0, value)]


FORMAT = ChunkFormat(
    name="JSON", patterns=PATTERNS, matches=named(*PATTERNS, compressed=True), read=read, not_chunks=not_chunks
)
