"""Conditions on payloads: `key=value` as people type it, and as Qdrant and plain payloads take it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ultimate_embedder.config import suggest
from ultimate_embedder.errors import UsageError
from ultimate_embedder.terminal import printable

Value = str | int | float | bool
Payload = Mapping[str, Any]
Path = tuple[str, ...]

INSIDE: tuple[Path, ...] = ((), ("metadata",), ("meta",))
"""Where a key is looked for: as it was typed, else in the metadata."""
EVERY = "[]"  # after a key: every element of a list of objects
EXAMPLE = "--filter page=3, or --filter 'source=a.md,b.md'"
SAMPLED_POINTS = 1000
MOST_NAMED = 20
EXACT_FLOAT = 1 << 53
LARGEST = 1 << 63  # beyond are no whole numbers in Qdrant
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[^,]+')
_PART = re.compile(r'"[^"]+"(?:\[\])?|[^."]+')
_PLAIN_PART = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Condition:
    """A payload must have one of these values under a key; of a list, one element must."""

    key: str
    """As it was typed."""
    path: Path
    values: tuple[Value, ...]

    @property
    def place(self) -> str:
        """The path as Qdrant writes it."""
        return ".".join(map(_quoted, self.path))

    def matches(self, payload: Payload) -> bool:
        """Whether a payload fulfils it."""
        return any(_equal(found, value) for found in find_values(payload, self.path) for value in self.values)


Given = str | Mapping[str, Any] | Iterable[str]


def read_filter(given: Given | None, option: str = "--filter") -> tuple[Condition, ...]:
    """Conditions from `key=value` words, or from a mapping of keys to values; all of them must be fulfilled."""
    if given is None:
        return ()
    if isinstance(given, Mapping):
        return tuple(_from_mapping(key, value, option) for key, value in given.items())
    if not isinstance(given, Iterable):
        raise UsageError(f"{option} {given!r}: not key=value. Write {EXAMPLE}.")
    words = [given] if isinstance(given, str) else list(given)
    return tuple(_from_word(word, option) for word in words)


def place_key(condition: Condition, has_key: Callable[[Condition], bool]) -> Condition | None:
    """The condition with its key where payloads have it: as it was typed, or in the metadata; None if nowhere."""
    places = (replace(condition, path=(*inside, *condition.path)) for inside in INSIDE)
    return next((each for each in places if has_key(each)), None)


def unknown_key(condition: Condition, payloads: Iterable[Payload]) -> UsageError:
    """An error about a key that no payload has, with the keys of some payloads."""
    known: dict[str, None] = {}
    for payload in payloads:
        known.update(dict.fromkeys(_keys(payload)))
    shorter = {name.removeprefix("metadata.").removeprefix("meta."): None for name in known}
    likely = suggest(condition.key, shorter)
    named = ", ".join(list(shorter)[:MOST_NAMED])
    more = f", and {len(shorter) - MOST_NAMED} more" if len(shorter) > MOST_NAMED else ""
    there = f" Keys: {named}{more}." if named else ""
    return UsageError(printable(f"--filter {condition.key}: no point has such a key.{likely}{there}"))


def as_json(conditions: Sequence[Condition]) -> dict[str, Any] | None:
    """The filter of Qdrant's REST protocol."""
    if not conditions:
        return None
    return {"must": [{"should": list(_json_choices(each))} for each in conditions]}


def as_edge(conditions: Sequence[Condition], keys: Sequence[str | int] | None = None) -> Any:
    """The filter of Qdrant Edge; `keys` allows these points only."""
    import qdrant_edge as edge

    must: list[Any] = [edge.Filter(should=list(_edge_choices(each))) for each in conditions]
    if keys is not None:
        must.append(edge.HasIdCondition(set(keys)))
    return edge.Filter(must=must) if must else None


def find_values(payload: Any, path: Path) -> Iterator[Any]:
    """The values under a path; of a list, its elements."""
    if not path:
        yield from payload if isinstance(payload, list) else [payload]
        return
    name = path[0].removesuffix(EVERY)
    if not isinstance(payload, Mapping) or name not in payload:
        return
    inner = payload[name]
    if path[0].endswith(EVERY):
        for element in inner if isinstance(inner, list) else []:
            yield from find_values(element, path[1:])
    else:
        yield from find_values(inner, path[1:])


def _from_word(word: str, option: str) -> Condition:
    if not isinstance(word, str):
        raise UsageError(f"{option} {word!r}: not text. Write {EXAMPLE}.")
    key, equals, values = word.partition("=")
    key = key.strip()
    if not equals or not key or not values.strip():
        raise UsageError(f"{option} {word!r}: not key=value. Write {EXAMPLE}.")
    given = [value for each in _WORD.findall(values) if each.strip() for value in _typed(each.strip(), option)]
    if not given:
        raise UsageError(f"{option} {word!r}: there is no value. Write {EXAMPLE}.")
    return Condition(key, _parts(key, option), tuple(given))


def _from_mapping(key: Any, value: Any, option: str) -> Condition:
    values = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    if not isinstance(key, str) or not values or not all(isinstance(each, str | int | float) for each in values):
        raise UsageError(f"filter {{{key!r}: {value!r}}}: give a text, a number, a bool, or a list of them, for a key.")
    if any(abs(each) >= LARGEST for each in values if isinstance(each, int)):
        raise UsageError(f"filter {key!r}: a whole number has 64 bits at most.")
    return Condition(key, _parts(key, option), tuple(values))


def _parts(key: str, option: str) -> Path:
    parts = _PART.findall(key)
    joined = ".".join(parts)
    if joined != key or not all(part.strip() for part in parts):
        raise UsageError(
            f"{option} {key!r}: not a key. Write a.b for b in a, and quotes around a key with a dot: '\"a.b\"'."
        )
    return tuple(part.replace('"', "") for part in parts)


def _typed(word: str, option: str) -> Iterator[Value]:
    """What a word may be in a payload: text, and a number or a bool if it reads like one. In quotes it is text."""
    if word.startswith('"'):
        try:
            yield str(json.loads(word))
        except ValueError:
            raise UsageError(f'{option}: {word} is not closed. Write "..." around the whole value.') from None
        return
    yield word
    if word.lower() in ("true", "false"):
        yield word.lower() == "true"
    elif re.fullmatch(r"[+-]?\d{1,19}", word) and abs(int(word)) < LARGEST:
        yield int(word)
    elif re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", word):
        yield float(word)


def _equal(found: Any, value: Value) -> bool:
    if isinstance(found, bool) or isinstance(value, bool):
        return found is value
    if isinstance(found, str) or isinstance(value, str):
        return isinstance(found, str) and found == value
    return isinstance(found, int | float) and found == value


def _json_choices(condition: Condition) -> Iterator[dict[str, Any]]:
    place = condition.place
    words = [value for value in condition.values if isinstance(value, str)]
    if words:
        yield {"key": place, "match": {"any": words}}
    for value in condition.values:
        if isinstance(value, bool) or _is_large(value):
            yield {"key": place, "match": {"value": value}}
        elif isinstance(value, int | float):
            yield {"key": place, "range": {"gte": value, "lte": value}}


def _edge_choices(condition: Condition) -> Iterator[Any]:
    import numpy as np
    import qdrant_edge as edge

    place = condition.place
    words = [value for value in condition.values if isinstance(value, str)]
    if words:
        yield edge.FieldCondition(key=place, match=edge.MatchAny(words))
    for value in condition.values:
        if isinstance(value, bool):  # one of numpy's: Edge 0.9 takes Python's for the number 0 or 1
            yield edge.FieldCondition(key=place, match=edge.MatchValue(np.bool_(value)))  # type: ignore[arg-type]
        elif isinstance(value, int) and _is_large(value):
            yield edge.FieldCondition(key=place, match=edge.MatchValue(value))
        elif isinstance(value, int | float):
            yield edge.FieldCondition(key=place, range=edge.RangeFloat(gte=value, lte=value))


def _is_large(value: Value) -> bool:
    """A whole number that a float cannot hold."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT_FLOAT


def _quoted(part: str) -> str:
    every = EVERY if part.endswith(EVERY) else ""
    name = part.removesuffix(EVERY)
    return (name if _PLAIN_PART.fullmatch(name) else f'"{name}"') + every


def _keys(payload: Any, before: str = "", depth: int = 4) -> Iterator[str]:
    """The keys of a payload with those inside of objects; text is no key to filter by."""
    for name, value in payload.items() if isinstance(payload, Mapping) else ():
        word = f'"{name}"' if "." in str(name) else str(name)
        if isinstance(value, Mapping) and value and depth:
            yield from _keys(value, f"{before}{word}.", depth - 1)
        elif name not in ("text", "page_content", "content", "_node_content"):
            yield f"{before}{word}"
