"""Whether a JSON file holds records, from a look at its beginning: most JSON files are something else."""

from __future__ import annotations

import json
from pathlib import Path

from ultimate_embedder.chunks.formats.format import uncompressed_name
from ultimate_embedder.chunks.formats.json_object import DOCSTORE
from ultimate_embedder.chunks.formats.json_text import BLANKS, decode_value, decode_whole, skip_blanks
from ultimate_embedder.chunks.formats.opened import open_text
from ultimate_embedder.chunks.shapes import LIST_KEYS, find_text_key

LOOK_CHARACTERS = 1 << 16
CHUNKS_BY_NAME = "chunks.json"  # also the end of a name: the file is read whatever it holds
NOT_CHUNKS_BY_NAME = ("_processing_summary.json",)
NO_RECORDS = "no records"


def not_chunks(path: Path) -> str | None:
    """Why a `.json` file holds no records; None if it may, or if it cannot be read: then reading it says why."""
    name = uncompressed_name(path.name)
    if name.endswith(NOT_CHUNKS_BY_NAME):
        return NO_RECORDS
    if name == CHUNKS_BY_NAME or name.endswith(f"_{CHUNKS_BY_NAME}"):
        return None
    try:
        with open_text(path) as file:
            start = file.read(LOOK_CHARACTERS)
    except OSError:
        return None
    return None if _holds_records(start) else NO_RECORDS


def _holds_records(start: str) -> bool:
    at = skip_blanks(start, 0)
    if start[at : at + 1] == "[":
        return _is_record_list(start, at)
    if start[at : at + 1] == "{":
        return _is_lines(start[at:]) or _holds_list_or_text(start, at)
    return start[at : at + 1] == '"' and _is_lines(start[at:])


def _is_record_list(start: str, at: int) -> bool:
    first = skip_blanks(start, at + 1)
    return start[first : first + 1] in ("{", '"')


def _is_lines(start: str) -> bool:
    """Whether these are JSON Lines, of two records at least."""
    first, newline, rest = start.partition("\n")
    try:
        decode_whole(first)
    except (json.JSONDecodeError, RecursionError):
        return False
    return bool(newline) and rest.lstrip(BLANKS)[:1] in ("{", '"')


def _holds_list_or_text(start: str, at: int) -> bool:
    """Whether an object has a list of records, records by their ids, or a text of its own, also as a column.

    True if that lies beyond what was read.
    """
    while start[at : at + 1] in ("{", ","):
        try:
            key, at = decode_value(start, skip_blanks(start, at + 1))
            at = skip_blanks(start, skip_blanks(start, at) + 1)  # over the colon
            if key in LIST_KEYS and start[at : at + 1] == "[" and _is_record_list(start, at):
                return True
            if key == DOCSTORE or (find_text_key([key]) and start[at : at + 1] in ('"', "{", "[")):
                return True
            value, at = decode_value(start, at)
            if isinstance(value, dict) and isinstance(value.get(find_text_key(value)), str):
                return True
            at = skip_blanks(start, at)
        except (json.JSONDecodeError, RecursionError, TypeError):
            return len(start) == LOOK_CHARACTERS
    return False
