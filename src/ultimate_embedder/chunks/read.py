"""Read chunk files record by record. What cannot be read is told apart and named, never dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ultimate_embedder.chunks.broken_json import DECODER, LIST_KEYS, read_broken_json
from ultimate_embedder.types import Rejected

BLANKS = "\0 \t\r\n"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

Record = tuple[int, Any]  # position in the file, counted from 0, and the parsed value


def read_records(path: Path, name: str) -> Iterator[Record | Rejected]:
    """Yield every record of a chunk file, or a `Rejected` for each part that cannot be read."""
    try:
        if path.suffix.lower() == ".parquet":
            from ultimate_embedder.chunks.read_parquet import read_parquet

            yield from read_parquet(path, name)
        elif path.suffix.lower() in (".jsonl", ".ndjson"):
            yield from _read_lines(path, name)
        else:
            yield from _read_json(path, name)
    except OSError as error:
        yield Rejected(name, None, f"the file cannot be read: {error.strerror or error}")


def printable(text: str) -> str:
    """The text with what is not Unicode in it spelled out, so that it can be written down."""
    return text.encode(errors="backslashreplace").decode()


def _read_json(path: Path, name: str) -> Iterator[Record | Rejected]:
    text = _decode(path.read_bytes())
    if not text.strip(BLANKS):
        yield _nothing_in(name, empty=not text)
        return
    text = text.rstrip(BLANKS)
    try:
        value = DECODER.decode(text)
    except json.JSONDecodeError as error:
        yield from _salvage(text, name, error)
    except RecursionError:
        yield Rejected(name, None, "the JSON is nested too deeply to be read")
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
            yield from _line_record(line, position, name)
    else:
        yield from read_broken_json(text, name, error)


def _read_lines(path: Path, name: str) -> Iterator[Record | Rejected]:
    with open(path, "rb") as file:
        encoding = "utf-16" if file.read(2) in UTF16_MARKS else "utf-8-sig"
    blank, size = True, 0
    errors = "surrogatepass" if encoding == "utf-16" else "surrogateescape"
    with open(path, encoding=encoding, errors=errors, newline="\n") as lines:
        for position, line in enumerate(lines):
            blank, size = blank and not line.strip(BLANKS), size + len(line)
            yield from _line_record(line, position, name)
    if blank:
        yield _nothing_in(name, empty=not size)


def _line_record(line: str, position: int, name: str) -> Iterator[Record | Rejected]:
    line = line.strip(BLANKS)
    if not line:
        return
    try:
        yield position, DECODER.decode(line)
    except json.JSONDecodeError as error:
        reason = f"line {position + 1} is not valid JSON ({error.msg.removesuffix(' at')} at column {error.colno})"
        yield Rejected(name, position, reason)
    except RecursionError:
        yield Rejected(name, position, f"line {position + 1} is nested too deeply to be read")
    except ValueError as error:  # a number of thousands of digits
        yield Rejected(name, position, f"line {position + 1} cannot be read ({error})")


def _decode(raw: bytes) -> str:
    encoding = json.detect_encoding(raw)
    # bytes that are no text are carried along, so that only the record they are in is rejected
    errors = "surrogateescape" if encoding.startswith("utf-8") else "surrogatepass"
    return raw.decode(encoding, errors).removeprefix("\ufeff")


def _nothing_in(name: str, empty: bool) -> Rejected:
    return Rejected(name, None, "the file is empty" if empty else "the file holds only blanks or NUL bytes")


def _parses(line: str) -> bool:
    try:
        DECODER.decode(line.strip(BLANKS))
    except (ValueError, RecursionError):
        return False
    return True
