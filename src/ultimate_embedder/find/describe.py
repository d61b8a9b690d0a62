"""What a payload says of its chunk: the text, where it is from, and under which headings it stands."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

TEXT_KEYS = ("text", "page_content", "content")
NODE = "_node_content"  # LlamaIndex keeps a node as JSON in it
METADATA_KEYS = ("metadata", "meta")
SOURCE_KEYS = (
    "source_file",
    "source",
    "file_path",
    "filepath",
    "file_name",
    "filename",
    "path",
    "url",
    "document",
    "doc_id",
    "title",
)
"""What the document of a chunk is called, the likeliest first; `file`, the chunk file, is the last resort."""
SECTION_KEYS = ("section_path", "headings", "heading_path", "section", "heading", "header", "chapter")
HEADERS = tuple(f"Header {level}" for level in range(1, 7))  # as LangChain's splitter for Markdown writes them
MOST_CHARACTERS = 300
MOST_HEADINGS = 8


@dataclass(frozen=True)
class Described:
    """A chunk in words."""

    chunk_id: str
    collection: str
    text: str
    source: str
    section: tuple[str, ...]


def describe(payload: Mapping[str, Any]) -> Described:
    """Find text, source and section in a payload of any shape that `upload` writes; what is not there is empty."""
    payload = {**_node(payload.get(NODE)), **payload}
    inner = [payload[key] for key in METADATA_KEYS if isinstance(payload.get(key), Mapping)]
    places: list[Mapping[str, Any]] = [*inner, payload]
    origins = [each["origin"] for each in inner if isinstance(each.get("origin"), Mapping)]  # Docling
    return Described(
        chunk_id=_first(("chunk_id",), [payload, *inner]),
        collection=_first(("collection",), [payload, *inner]),
        text=_text(payload),
        source=_first(SOURCE_KEYS, [*origins, *places]) or _first(("file",), [payload, *inner]),
        section=_section(places),
    )


def _text(payload: Mapping[str, Any]) -> str:
    return next((payload[key] for key in TEXT_KEYS if isinstance(payload.get(key), str)), "")


def _section(places: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    for place in places:
        if headers := [text for key in HEADERS if (text := _short(place.get(key)))]:
            return tuple(headers)
        for key in SECTION_KEYS:
            value = place.get(key)
            parts = value if isinstance(value, list) else [value]
            if found := [text for part in parts[:MOST_HEADINGS] if (text := _short(part))]:
                return tuple(found)
    return ()


def _first(keys: Iterable[str], places: Iterable[Mapping[str, Any]]) -> str:
    found = (_short(place.get(key)) for place in places for key in keys)
    return next((text for text in found if text), "")


def _short(value: Any) -> str:
    """A text or a number, cut to a length that can be shown; nothing else is a name."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value).strip()[:MOST_CHARACTERS]


def _node(content: Any) -> dict[str, Any]:
    try:
        found = json.loads(content) if isinstance(content, str) else {}
    except (ValueError, RecursionError):
        return {}
    return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}
