"""Which fields of a record the user has chosen: a key of the record, or a path of keys with dots between them."""

from __future__ import annotations

from dataclasses import dataclass

from ultimate_embedder.errors import UsageError

SEPARATOR = "."


@dataclass(frozen=True)
class FieldChoice:
    """Where text, id, metadata and title of a record are; None: as recognised, and no title."""

    text: str | None = None
    id: str | None = None
    metadata: str | None = None
    title: str | None = None


def parse_field(value: str, option: str) -> str:
    """Check that a value is a key, or keys with dots between them."""
    if not isinstance(value, str) or not all(part.strip() for part in value.split(SEPARATOR)):
        raise UsageError(f"{option} {value!r}: write a key of your records, or a path such as meta.body.")
    return value


def field_choice(text: str | None, id: str | None, metadata: str | None, title: str | None) -> FieldChoice:
    """The fields that were chosen; no two may be the same."""
    given = {"--text-field": text, "--metadata-field": metadata, "--title-field": title}
    for option, field in given.items():
        others = [other for other in given if other != option and field is not None and given[other] == field]
        if others:
            raise UsageError(f"{option} and {others[0]} are both {field}. Drop one.")
    return FieldChoice(text, id, metadata, title)
