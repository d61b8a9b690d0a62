"""Queries: texts by their id, from a file or from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ultimate_embedder.errors import UsageError
from ultimate_embedder.find.evaluate.records import BLANKS, Entry, Problems, read_entries

ID_NAMES = ("_id", "id", "qid", "query_id", "query-id", "query id", "topic_id", "topic")
TEXT_NAMES = ("text", "query", "question", "query_text", "query-text", "title", "content")
MOST_QUERIES = 1_000_000
FORMATS = (
    'JSON Lines with {"_id": ..., "text": ...}, a JSON object {"ID": "TEXT"}, or lines of ID and TEXT with a tab '
    "between them"
)


@dataclass(frozen=True)
class Queries:
    """Texts by id, in the order of the file, and what was skipped."""

    texts: Mapping[str, str]
    problems: tuple[str, ...] = ()


def read_queries(source: Path | Mapping[str, str]) -> Queries:
    """The queries of a file, or a dictionary of ids and texts; raises `UsageError` if there is none."""
    problems = Problems()
    texts: dict[str, str] = {}
    for place, query_id, text in _given(source, problems):
        if not isinstance(text, str) or not text.strip(BLANKS):
            problems.add("has no text, and is skipped", place)
        elif texts.setdefault(query_id, text) != text:
            problems.add("has the id of another query, and is skipped", place)
        if len(texts) > MOST_QUERIES:
            raise UsageError(f"{source} has more than {MOST_QUERIES:,} queries. Evaluate a sample of them.")
    if not texts:
        found = "; ".join(problems.sentences()) or "it is empty"
        raise UsageError(f"{_name(source)} has no queries: {found}. Give {FORMATS}.")
    return Queries(texts, tuple(f"{_name(source)}: {each}" for each in problems.sentences()))


def _given(source: Path | Mapping[str, str], problems: Problems) -> Any:
    if isinstance(source, Mapping):
        yield from ((str(key), str(key), text) for key, text in source.items())
        return
    for entry in read_entries(source, problems, _is_header):
        query_id, text = _fields(entry)
        if query_id is None:
            problems.add("has no id, and is skipped", entry.place)
        else:
            yield entry.place, query_id, text


def _fields(entry: Entry) -> tuple[str | None, Any]:
    values = entry.values
    if isinstance(values, Mapping):
        if values.keys() == {"key", "value"}:  # one object for all
            return values["key"], values["value"]
        return as_id(first_of(values, ID_NAMES)), first_of(values, TEXT_NAMES)
    return (as_id(values[0]), " ".join(values[1:])) if len(values) > 1 else (None, None)


def _is_header(values: Sequence[str]) -> bool:
    names = [value.strip(BLANKS).lower() for value in values]
    return any(name in ID_NAMES for name in names) and any(name in TEXT_NAMES for name in names)


def first_of(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The value of the first of these names, in whatever case; None if there is none."""
    lower = {str(name).lower(): value for name, value in values.items()}
    return next((lower[name] for name in names if lower.get(name) is not None), None)


def as_id(value: Any) -> str | None:
    """An id as text: texts without blanks around them, and whole numbers."""
    if isinstance(value, str):
        return value.strip(BLANKS) or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _name(source: Path | Mapping[str, str]) -> str:
    return str(source) if isinstance(source, Path) else "queries"
