"""JSON: a list of records, or an object that contains one. The file is read into memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ultimate_embedder.chunks.formats.broken_json import DECODER, LIST_KEYS, read_broken_json
from ultimate_embedder.chunks.formats.format import ChunkFormat, Record, named
from ultimate_embedder.chunks.formats.json_lines import BLANKS, nothing_in, read_line
from ultimate_embedder.terminal import printable
from ultimate_embedder.types import Rejected

PATTERNS = ("*_chunks.json",)


def read(path: Path, name: str) -> Iterator[Record | Rejected]:
    """Yield the records of the list; of a damaged file, those before the damage."""
    text = _decode(path.read_bytes())
    if not text.strip(BLANKS):
        yield nothing_in(name, empty=not text)
        return
    text = text.rstrip(BLANKS)
    try:
        value = DECODER.decode(text)
    except json.JSONDecodeError as error:
        yield from _salvage(text, name, error)
    except RecursionError:
        yield Rejected(name, None, "the JSON is nested too deeply")
    except ValueError as error:  # a number of thousands of digits
        yield from read_broken_json(text, name, json.JSONDecodeError(str(error), text, 0))
    else:
        yield from _records_of(value, name)


def _records_of(value: Any, name: str) -> Iterator[Record | Rejected]:
    if isinstance(value, dict) and "text" not in value:
        key = next((key for key in LIST_KEYS if isinstance(value.get(key), list)), None)
        if key is None:
            keys = printable(", ".join(list(value)[:8])) or "none"
            reason = f"the object has no list under {', '.join(LIST_KEYS)}; its keys are: {keys}"
            yield Rejected(name, None, reason)
            return
        value = value[key]
    yield from enumerate(value if isinstance(value, list) else [value])


def _salvage(text: str, name: str, error: json.JSONDecodeError) -> Iterator[Record | Rejected]:
    """JSON Lines under a .json name, or a damaged file."""
    first_line = text.lstrip(BLANKS).split("\n", 1)[0]
    if first_line.startswith(("{", '"')) and _parses(first_line):
        for position, line in enumerate(text.split("\n")):
            yield from read_line(line, position, name)
    else:
        yield from read_broken_json(text, name, error)


def _decode(raw: bytes) -> str:
    encoding = json.detect_encoding(raw)
    # invalid bytes are kept, so that only the record that contains them is rejected
    errors = "surrogateescape" if encoding.startswith("utf-8") else "surrogatepass"
    return raw.decode(encoding, errors).removeprefix("\ufeff")


def _parses(line: str) -> bool:
    try:
        DECODER.decode(line.strip(BLANKS))
    except (ValueError, RecursionError):
        return False
    return True


FORMAT = ChunkFormat(name="JSON", patterns=PATTERNS, matches=named(*PATTERNS, "chunks.json"), read=read)
