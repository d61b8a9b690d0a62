"""JSON Lines: one record per line, read line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from ultimate_embedder.chunks.formats.broken_json import DECODER
from ultimate_embedder.chunks.formats.format import ChunkFormat, Record, named
from ultimate_embedder.types import Rejected

PATTERNS = ("*.jsonl", "*.ndjson")
BLANKS = "\0 \t\r\n"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def read(path: Path, name: str) -> Iterator[Record | Rejected]:
    """Yield the record of every line that is not blank; an invalid line is rejected alone."""
    with open(path, "rb") as file:
        encoding = "utf-16" if file.read(2) in UTF16_MARKS else "utf-8-sig"
    blank, size = True, 0
    errors = "surrogatepass" if encoding == "utf-16" else "surrogateescape"
    with open(path, encoding=encoding, errors=errors, newline="\n") as lines:
        for position, line in enumerate(lines):
            blank, size = blank and not line.strip(BLANKS), size + len(line)
            yield from read_line(line, position, name)
    if blank:
        yield nothing_in(name, empty=not size)


def read_line(line: str, position: int, name: str) -> Iterator[Record | Rejected]:
    """Yield the record of one line or a `Rejected`; nothing for a blank line."""
    line = line.strip(BLANKS)
    if not line:
        return
    try:
        yield position, DECODER.decode(line)
    except json.JSONDecodeError as error:
        reason = f"line {position + 1} is not valid JSON ({error.msg.removesuffix(' at')} at column {error.colno})"
        yield Rejected(name, position, reason)
    except RecursionError:
        yield Rejected(name, position, f"line {position + 1} is nested too deeply")
    except ValueError as error:  # a number of thousands of digits
        yield Rejected(name, position, f"line {position + 1} cannot be read ({error})")


def nothing_in(name: str, empty: bool) -> Rejected:
    """The `Rejected` of a file without records."""
    return Rejected(name, None, "the file is empty" if empty else "the file has only whitespace or NUL bytes")


FORMAT = ChunkFormat(name="JSON Lines", patterns=PATTERNS, matches=named(*PATTERNS), read=read)
