"""Recover the complete records of a JSON file that is truncated or damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from ultimate_embedder.chunks.formats.format import Record
from ultimate_embedder.types import Rejected

LIST_KEYS = ("chunks", "data", "records", "items")
# strict=False: raw newlines and NUL bytes inside strings are common in the wild and harmless
DECODER = json.JSONDecoder(strict=False)
_BLANKS = re.compile(r"[ \t\r\n\0]*")


def read_broken_json(text: str, name: str, error: json.JSONDecodeError) -> Iterator[Record | Rejected]:
    """Yield the records before the damage, then a `Rejected` that says where it is."""
    saved, end = 0, _list_start(text)
    while end is not None:
        try:
            value, end = DECODER.raw_decode(text, _skip_blanks(text, end))
        except (ValueError, RecursionError):
            break
        yield saved, value
        saved += 1
        end = _skip_blanks(text, end)
        end = end + 1 if text[end : end + 1] == "," else None
    yield Rejected(name, saved, _reason(text, error, saved))


def _list_start(text: str) -> int | None:
    """Where the records begin: after "[", or after the "[" of the list that would be read from an intact file."""
    end = _skip_blanks(text, 0)
    if text[end : end + 1] == "[":
        return end + 1
    starts: dict[str, int] = {}
    while text[end : end + 1] in ("{", ","):
        try:
            key, end = DECODER.raw_decode(text, _skip_blanks(text, end + 1))
            end = _skip_blanks(text, _skip_blanks(text, end) + 1)  # over the colon
            if text[end : end + 1] == "[":
                starts[key] = end + 1
            _, end = DECODER.raw_decode(text, end)
        except (ValueError, RecursionError):
            break  # truncated or damaged within this value
        end = _skip_blanks(text, end)
    return next((starts[key] for key in LIST_KEYS if key in starts), None)


def _reason(text: str, error: json.JSONDecodeError, saved: int) -> str:
    where = f"line {error.lineno} column {error.colno}"
    what = "the file is truncated" if _is_truncated(text, error) else f"not valid JSON ({error.msg})"
    records = "the record" if saved == 1 else f"the {saved} records"
    kept = (
        f"{records} before it {'was' if saved == 1 else 'were'} read" if saved else "no record before it could be read"
    )
    return f"{what} at {where}; {kept}. Run your chunker again to rewrite the file."


def _is_truncated(text: str, error: json.JSONDecodeError) -> bool:
    """Whether parsing failed because the text ended, not because it is malformed."""
    if error.msg == "Extra data":
        return False
    rest = text[error.pos :]
    return (
        error.msg.startswith("Unterminated string")
        or len(rest) <= 1
        or (error.msg.startswith("Invalid \\") and len(rest) < len("\\uXXXX") + 1)
        or any(word.startswith(rest) for word in ("true", "false", "null"))
    )


def _skip_blanks(text: str, index: int) -> int:
    match = _BLANKS.match(text, index)
    return match.end() if match else index
