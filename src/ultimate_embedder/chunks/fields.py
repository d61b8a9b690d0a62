"""Find text, id and metadata of a record: where the user said, or where the tool that wrote it puts them."""

from __future__ import annotations

import difflib
import itertools
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ultimate_embedder.chunks.formats import LONGEST_KEY, first_keys
from ultimate_embedder.chunks.formats.json_text import LongInteger
from ultimate_embedder.chunks.shapes import (
    ID_KEYS,
    METADATA,
    TEXT,
    KeyPath,
    Shape,
    Wrapper,
    find_shapes,
    find_text_key,
    find_wrapper,
)
from ultimate_embedder.config import SEPARATOR, FieldChoice
from ultimate_embedder.terminal import printable

MOST_PLANS = 1024  # sets of keys whose plan is kept: most collections have a few
LONGEST_KEYS = 10_000  # characters of all keys of a record whose plan is kept
MOST_SUGGESTED = 1000  # fields among which a similar name is looked for
MISSING = object()

UsedFields = tuple[str | None, str | None, str | None, str | None]
"""Where fields were found: the tool that writes such records, text, metadata (if it was elsewhere) and id."""
BARE_TEXT: UsedFields = (None, None, None, None)


class Fields(NamedTuple):
    """The parts of a record."""

    text: Any
    rest: dict[str, Any]
    """Everything else, with the metadata under `metadata`."""
    id: str | None
    used: UsedFields
    missing: tuple[str, ...]
    """Options that name a field which this record does not have."""


@dataclass(frozen=True)
class _Plan:
    """Where the fields are, in records that have the same keys."""

    tool: str | None
    text: KeyPath | None
    metadata: KeyPath
    id: KeyPath | None
    """The id of the tool, or the chosen one; before those of `id_keys`."""
    id_keys: tuple[str, ...]
    title: KeyPath | None
    own_keys: frozenset[str] | None
    marker: KeyPath | None
    """What the record must have as well, for this plan to be its plan."""
    text_name: str | None
    metadata_name: str | None
    only_text: str | None
    """The key of the text, if nothing else has to be taken from its place."""
    metadata_ids: tuple[tuple[str, str], ...]
    """Keys of ids in the metadata, and what they are called."""


class FieldReader:
    """Takes records apart. The places are looked up once for records with equal keys."""

    def __init__(self, choice: FieldChoice | None = None) -> None:
        self._choice = choice or FieldChoice()
        self._known: dict[Any, tuple[Wrapper | None, tuple[_Plan, ...]]] = {}

    def read(self, record: dict[str, Any]) -> Fields | None:
        """The parts of a record; None if it has no text."""
        record, plan = self._plan(record)
        found, id_name = self._find_id(record, plan)
        used = (plan.tool, plan.text_name, plan.metadata_name, id_name)
        if (only := plan.only_text) is not None:  # the common case
            rest = {key: value for key, value in record.items() if key != only}
            return Fields(_decoded(record[only]), rest, found, used, ())
        text = _at(record, plan.text) if plan.text is not None else MISSING
        if text is MISSING:
            return None
        missing = self._missing(record, plan, found)
        text = _decoded(text) if plan.title is None else _with_title(_at(record, plan.title), _decoded(text))
        return Fields(text, _rest(record, plan), found, used, missing)

    def decode_text(self, record: dict[str, Any]) -> None:
        """Replace a text of bytes in the record by what they spell."""
        record, plan = self._plan(record)
        if plan.text is not None and isinstance(text := _at(record, plan.text), bytes):
            for key in plan.text[:-1]:
                record = record[key]
            record[plan.text[-1]] = _decoded(bytes(text))

    def lacks_text(self, record: dict[str, Any]) -> bool:
        """Whether no record with these keys can have a text."""
        record, plan = self._plan(record)
        return plan.text is None or plan.text[0] not in record

    def no_text(self, record: dict[str, Any], keys: str = "keys") -> str:
        """Why a record has no text, and what to try."""
        record, _ = self._plan(record)
        problem = f"no field {printable(self._choice.text)}" if self._choice.text else "no text field"
        return f"{problem} ({keys}: {first_keys(record)}){self._advice(record)}"

    def missing_everywhere(self, option: str, records: int, record: dict[str, Any]) -> str:
        """Say that no record has a field that was asked for; `record` is one of them."""
        record, _ = self._plan(record)
        what, fits = KINDS[option]
        name = str(getattr(self._choice, option))
        near = difflib.get_close_matches(name, [each for each, value in _named(record) if fits(value)], n=1)
        of_these = "the record does not have" if records == 1 else f"none of the {records:,} records has"
        suggestion = f" Did you mean {printable(near[0])}?" if near else ""
        return f"--{option}-field {name}: {of_these} {what} there (keys: {first_keys(record)}).{suggestion}"

    def _plan(self, record: dict[str, Any]) -> tuple[dict[str, Any], _Plan]:
        """The record without its wrapper, and where its fields are."""
        keys = tuple(record)
        wrapper, plans = self._known.get(keys) or self._learn(keys, keys)
        if wrapper is not None and isinstance(inner := record[wrapper.inside], dict):
            record, keys = inner, tuple(inner)
            _, plans = self._known.get((wrapper.inside, keys)) or self._learn((wrapper.inside, keys), keys, wrapper)
        for plan in plans:
            if plan.marker is None or _at(record, plan.marker) is not MISSING:
                break
        return record, plan  # the last one has no marker

    def _learn(
        self, known_as: Any, keys: KeyPath, inside: Wrapper | None = None
    ) -> tuple[Wrapper | None, tuple[_Plan, ...]]:
        shapes: list[Shape | None] = [*find_shapes(keys), None]
        wrapper = None if inside else find_wrapper(keys)
        known = wrapper, tuple(self._plan_for(keys, shape, inside) for shape in shapes)
        if len(self._known) >= MOST_PLANS:
            self._known.clear()
        if sum(map(len, keys)) <= LONGEST_KEYS:
            self._known[known_as] = known
        return known

    def _plan_for(self, keys: KeyPath, shape: Shape | None, wrapper: Wrapper | None) -> _Plan:
        chosen = {name: _path(name, keys, wrapper) for name in vars(self._choice).values() if name is not None}
        choice = self._choice
        plain = find_text_key(keys) if shape is None else None
        text = chosen[choice.text] if choice.text else shape.text if shape else (plain,) if plain else None
        metadata = chosen[choice.metadata] if choice.metadata else (shape.metadata if shape else METADATA,)
        own_id = (shape.id,) if shape and shape.id else None
        title = chosen[choice.title] if choice.title else None
        own_keys = shape.own_keys if shape and not choice.metadata else None
        moves = metadata != (METADATA,) or own_keys is not None
        text_name = SEPARATOR.join(text) if text else None
        return _Plan(
            tool=shape.tool if shape else wrapper.tool if wrapper else None,
            text=text,
            metadata=metadata,
            id=chosen[choice.id] if choice.id else own_id,
            id_keys=() if choice.id else tuple(key for key in ID_KEYS if key in keys),
            title=title,
            own_keys=own_keys,
            marker=(shape.metadata, shape.marker) if shape and shape.marker else None,
            text_name=f"{SEPARATOR.join(title)} and {text_name}" if title else text_name,
            metadata_name=SEPARATOR.join(metadata) if moves and own_keys is None else None,
            only_text=None if moves or choice.id or choice.metadata or title else _only_key(text, keys),
            metadata_ids=tuple((key, SEPARATOR.join((*metadata, key))) for key in ID_KEYS),
        )

    def _find_id(self, record: dict[str, Any], plan: _Plan) -> tuple[str | None, str | None]:
        """The id of a record, and where it was found."""
        if plan.id is not None and (found := _as_id(_at(record, plan.id))) is not None:
            return found, SEPARATOR.join(plan.id)
        if self._choice.id:
            return None, None
        metadata = _at(record, plan.metadata)
        if isinstance(metadata, dict):
            for key, name in plan.metadata_ids:
                if key in metadata and (found := _as_id(metadata[key])) is not None:
                    return found, name
        for key in plan.id_keys:
            if (found := _as_id(record[key])) is not None:
                return found, key
        return None, None

    def _missing(self, record: dict[str, Any], plan: _Plan, found: str | None) -> tuple[str, ...]:
        missing = []
        if self._choice.id and found is None:
            missing.append("id")
        if self._choice.metadata and not _is_object(_at(record, plan.metadata)):
            missing.append("metadata")
        if plan.title and not _is_text(_at(record, plan.title)):
            missing.append("title")
        return tuple(missing)

    def _advice(self, record: dict[str, Any]) -> str:
        """The option that would find the text: by a similar name, or else the longest text of the record."""
        texts = {name: value for name, value in _named(record) if isinstance(value, str) and value.strip()}
        if not texts:
            return ""
        near = difflib.get_close_matches(self._choice.text or TEXT, list(texts), n=1)
        best = near[0] if near else max(texts, key=lambda name: len(texts[name]))
        return f". Try --text-field {shlex.quote(best)}"


def _path(name: str, keys: KeyPath, wrapper: Wrapper | None) -> KeyPath:
    """The path that a name stands for: a key of the record, which may contain dots, or keys with dots between them."""
    if name in keys:
        return (name,)
    path = tuple(name.split(SEPARATOR))
    return path[1:] if wrapper is not None and path[0] == wrapper.inside and len(path) > 1 else path


def _only_key(text: KeyPath | None, keys: KeyPath) -> str | None:
    """The key of the text, if it is in the record itself and no other text is in the way of it."""
    if text is None or len(text) > 1 or text[0] not in keys or (text != (TEXT,) and TEXT in keys):
        return None
    return text[0]


def _decoded(text: Any) -> Any:
    """Bytes as text; a byte that is not UTF-8 becomes a character by which the record is rejected."""
    return text.decode(errors="surrogateescape") if type(text) is bytes else text


def _at(record: Any, path: KeyPath) -> Any:
    for key in path:
        if not isinstance(record, dict) or key not in record:
            return MISSING
        record = record[key]
    return record


def _as_id(value: Any) -> str | None:
    """A value as an id, if it can be one."""
    if isinstance(value, str):
        return value if value.strip() else None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value.digits if isinstance(value, LongInteger) else None


def _is_id(value: Any) -> bool:
    return _as_id(value) is not None


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


KINDS = {"id": ("text or an integer", _is_id), "metadata": ("an object", _is_object), "title": ("text", _is_text)}
"""What a chosen field must be, by its option: in words, and as a function."""


def _with_title(title: Any, text: Any) -> Any:
    """The text with its title in front, with a space between them as in BEIR."""
    if not isinstance(title, str) or not title.strip() or not isinstance(text, str):
        return text
    return f"{title} {text}" if text.strip() else title


def _rest(record: dict[str, Any], plan: _Plan) -> dict[str, Any]:
    """The record without its text, and with its metadata under `metadata`."""
    rest = _without(record, plan.text or ())
    if plan.own_keys is not None:
        metadata = {key: value for key, value in rest.items() if key not in plan.own_keys}
        rest = {key: value for key, value in rest.items() if key in plan.own_keys}
        rest[METADATA] = metadata
    elif plan.metadata != (METADATA,) and (metadata := _at(rest, plan.metadata)) is not MISSING:
        rest = _put(_without(rest, plan.metadata), METADATA, metadata)
    return _put(rest, TEXT, MISSING) if TEXT in rest else rest  # exports have the text under that key


def _without(record: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    first, more = path[0], path[1:]
    if more:
        return {**record, first: _without(record[first], more)} if isinstance(record.get(first), dict) else record
    return {key: value for key, value in record.items() if key != first}


def _put(record: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The record with a value under this key; what is there gets an underscore in front of its key."""
    before = record.get(key, MISSING)
    record = _without(record, (key,))
    if value is not MISSING:
        record[key] = value
    return record if before is MISSING else _put(record, f"_{key}", before)


def _named(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Some values of a record and of the objects in it, by their paths: those that a person can type."""
    found = itertools.islice(_leaves(record), MOST_SUGGESTED)
    return ((name, value) for name, value in found if name.isprintable() and 0 < len(name) <= LONGEST_KEY)


def _leaves(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        yield key, value
        if isinstance(value, dict):
            yield from ((f"{key}{SEPARATOR}{inner}", each) for inner, each in value.items())
