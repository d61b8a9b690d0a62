"""Check one record: what it becomes as a chunk, or why it is rejected."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ultimate_embedder.chunks.fields import BARE_TEXT, FieldReader, Fields, UsedFields
from ultimate_embedder.chunks.formats import first_keys
from ultimate_embedder.chunks.formats.json_text import LongInteger
from ultimate_embedder.types import Chunk, Rejected

DEEPEST_NESTING = 100  # Qdrant cannot read back payloads of more than about 120 levels
LEAST_INTEGER, LARGEST_INTEGER = -(2**63), 2**64 - 1  # Qdrant rounds others to a float, or refuses them
NOT_FINITE = "NaN or infinity was replaced by null, as JSON has no such number"
TOO_LARGE = "an integer of more than 64 bits was replaced by its digits as text, as Qdrant has no such number"

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)  # json.dumps would make one for each record
_MANY_DIGITS = re.compile("[0-9]{19}")  # integers with fewer have less than 64 bits


@dataclass(frozen=True)
class Replacement:
    """Values that were replaced in a record: under which keys, and how."""

    keys: str
    what: str


class CheckedRecord(NamedTuple):
    """What a record has become, what was replaced in it, and where its fields were."""

    chunk: Chunk | Rejected
    replaced: tuple[Replacement, ...] = ()
    used: UsedFields = BARE_TEXT
    missing: tuple[str, ...] = ()
    """Chosen fields that it does not have, as in `Fields`."""


def check_record(value: Any, file: str, position: int, reader: FieldReader) -> CheckedRecord:
    """Turn one record into a chunk, or into the reason why it is rejected."""
    fields = _fields(value, reader)
    if isinstance(fields, str):
        return CheckedRecord(Rejected(file, position, fields))
    if problem := _text_problem(fields.text):
        return CheckedRecord(Rejected(file, position, problem))
    text, rest = fields.text, fields.rest
    record_json = _as_json(text, rest)
    replaced: tuple[Replacement, ...] = ()
    if record_json is None:  # not storable as it is: find out why
        if problem := _unencodable(text, rest):
            return CheckedRecord(Rejected(file, position, problem))
        replaced = tuple(_replacements(rest))
        rest = _storable(rest)
        record_json = json.dumps(rest, ensure_ascii=False)
    chunk = Chunk(fields.id or _content_id(file, text), text, record_json, file, position)
    return CheckedRecord(chunk, replaced, fields.used, fields.missing)


def _fields(value: Any, reader: FieldReader) -> Fields | str:
    """The parts of a record, or why it has no text."""
    if isinstance(value, str):
        return Fields(value, {}, None, BARE_TEXT, ())
    if not isinstance(value, dict):
        return f"the record is {_kind(value)}, not an object or a string"
    return reader.read(value) or reader.no_text(value)


def _text_problem(text: Any) -> str | None:
    """Why a value is no text, or None."""
    if not isinstance(text, str):
        return f"the text is {_kind(text)}, not a string"
    if not text.strip():
        return "the text is empty" if not text else "the text is only whitespace"
    return None


def _as_json(text: str, record: dict[str, Any]) -> str | None:
    """The record as JSON; None if it or the text may not be storable as they are."""
    try:
        text.encode()
        plain = _ENCODER.encode(record)
        plain.encode()
    except (ValueError, RecursionError, TypeError):  # TypeError: a LongInteger, or bytes
        return None
    if plain.count("{") + plain.count("[") > DEEPEST_NESTING or _MANY_DIGITS.search(plain):
        return None
    return plain


def _content_id(file: str, text: str) -> str:
    """An id from file and text, which does not change when the text moves within its file."""
    return hashlib.sha256(f"{file}\0{text}".encode()).hexdigest()[:24]


def _unencodable(text: str, record: dict[str, Any]) -> str | None:
    """Why this record cannot be stored as UTF-8 JSON, or None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"the text is not valid Unicode at character {error.start}: {_bad_character(error)}"
    if _depth(record) > DEEPEST_NESTING:
        return f"the metadata is nested more than {DEEPEST_NESTING} levels deep"
    try:
        for word in _strings(record):
            word.encode()
    except UnicodeEncodeError as error:
        return f"the metadata is not valid Unicode: {_bad_character(error)}"
    return None


def _bad_character(error: UnicodeEncodeError) -> str:
    code = ord(error.object[error.start])
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: a byte that was not UTF-8
        return f"byte 0x{code - 0xDC00:02x} is not UTF-8"
    return f"lone surrogate U+{code:04X}"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        nested: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                nested.extend(item.values())
            elif isinstance(item, list):
                nested.extend(item)
        level = nested
    return deepest - 1


def _replacements(record: dict[str, Any]) -> Iterator[Replacement]:
    for is_such, what in ((_is_not_finite, NOT_FINITE), (_is_too_large, TOO_LARGE)):
        keys = [key for key, value in record.items() if any(map(is_such, _leaves(value)))]
        if keys:
            yield Replacement(first_keys(keys), what)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_too_large(value: Any) -> bool:
    if isinstance(value, LongInteger):
        return True
    return isinstance(value, int) and not LEAST_INTEGER <= value <= LARGEST_INTEGER


def _storable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if _is_not_finite(value):
        return None
    if _is_too_large(value):
        return value.digits if isinstance(value, LongInteger) else str(value)
    return value.hex() if isinstance(value, bytes) else value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    names[LongInteger] = "a number"
    return names.get(type(value), f"a {type(value).__name__}")
