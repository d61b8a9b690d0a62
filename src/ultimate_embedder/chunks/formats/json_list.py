"""The records of a JSON list, one by one; of a damaged one, those before the damage."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator

from ultimate_embedder.chunks.formats.format import LARGEST_RECORD, Record
from ultimate_embedder.chunks.formats.json_text import (
    Damage,
    DamagedError,
    JsonText,
    RecordTooLongError,
    decode_value,
    skip_blanks,
)
from ultimate_embedder.chunks.shapes import LIST_KEYS
from ultimate_embedder.types import Rejected

TOO_LONG = f"the record has more than {LARGEST_RECORD:,} characters, which is the limit"
TOO_DEEP = "the record is nested too deeply"


def read_list(text: JsonText, name: str) -> Iterator[Record | Rejected]:
    """Yield the records of a file that is a list."""
    count = yield from _read_records(text, name)
    if count is not None and text.peek():
        yield _damaged(name, count, text.damage(json.JSONDecodeError("Extra data", text.text, text.at)))


def read_damaged_object(text: str, name: str, error: json.JSONDecodeError | None) -> Iterator[Record | Rejected]:
    """Yield the records of an object that cannot be read as a whole, then what is wrong with it."""
    whole = JsonText(None, text)
    start = _list_start(text)
    if start is None:
        reason = "the JSON is nested too deeply"
        yield Rejected(name, None, reason) if error is None else _damaged(name, 0, whole.damage(error))
        return
    count = yield from _read_records(JsonText(None, text, start), name)
    if count is not None and error is not None:
        yield _damaged(name, count, whole.damage(error))


def _read_records(text: JsonText, name: str) -> Generator[Record | Rejected, None, int | None]:
    """Yield the records of the list that begins here; returns their number, or None if the list does not end."""
    text.at += 1
    position = 0
    if text.peek() == "]":
        text.at += 1
        return position
    while True:
        try:
            text.peek()
            yield position, text.value()
        except DamagedError as error:
            yield _damaged(name, position, error.damage)
            return None
        except (RecordTooLongError, RecursionError) as error:
            yield Rejected(name, position, TOO_DEEP if isinstance(error, RecursionError) else TOO_LONG)
            if not text.skip():
                return None
        position += 1
        character = text.peek()
        text.at += 1
        if character == "]":
            return position
        if character != ",":
            text.at -= 1
            error_here = json.JSONDecodeError("Expecting ',' delimiter", text.text, text.at)
            yield _damaged(name, position, text.damage(error_here))
            return None


def _list_start(text: str) -> int | None:
    """Where the list is that would be read from an intact object: its opening bracket."""
    end = skip_blanks(text, 0)
    starts: dict[str, int] = {}
    while text[end : end + 1] in ("{", ","):
        try:
            key, end = decode_value(text, skip_blanks(text, end + 1))
            end = skip_blanks(text, skip_blanks(text, end) + 1)  # over the colon
            if text[end : end + 1] == "[" and isinstance(key, str):
                starts[key] = end
            end = _behind(text, end)
        except json.JSONDecodeError:
            break  # truncated or damaged within this value
        end = skip_blanks(text, end)
    return next((starts[key] for key in LIST_KEYS if key in starts), None)


def _behind(text: str, start: int) -> int:
    try:
        return decode_value(text, start)[1]
    except RecursionError:
        value = JsonText(None, text, start)
        return value.at if value.skip() else len(text)


def _damaged(name: str, count: int, damage: Damage) -> Rejected:
    what = "the file is truncated" if damage.truncated else f"not valid JSON ({damage.message})"
    records = "the record" if count == 1 else f"the {count} records"
    kept = (
        f"{records} before it {'was' if count == 1 else 'were'} read" if count else "no record before it could be read"
    )
    where = f"line {damage.line} column {damage.column}"
    return Rejected(name, count, f"{what} at {where}; {kept}. Run your chunker again to rewrite the file.")
