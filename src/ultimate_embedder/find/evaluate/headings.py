"""A check without judgements: titles and headings of the chunks as queries, which should find their own sections."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ultimate_embedder.errors import OutputError, UsageError
from ultimate_embedder.export import PointsFile
from ultimate_embedder.files import atomic_file
from ultimate_embedder.find.evaluate.documents import read_records
from ultimate_embedder.find.evaluate.judgements import Judgements
from ultimate_embedder.find.evaluate.queries import Queries

PATH_FIELDS = ("section_path", "headings", "heading_path", "hierarchy_path", "breadcrumbs", "header_path")
TITLE_FIELDS = ("heading_text", "heading", "section_title", "section", "title", "header", "name")
DEFAULT_COUNT = 200
FEWEST_WORDS = 2
LONGEST_QUERY = 200
MOST_CHUNKS = 20  # a heading of more chunks says little about any of them
CAN = "whether chunks are found by their headings, and which model or fusion does that better"
CANNOT = (
    "how well real questions are answered: headings are short, use the words of the text, and other chunks that would "
    "answer as well count as wrong. Decide by real queries with judgements where you can."
)


@dataclass(frozen=True)
class MadeQueries:
    """Queries made of headings, with the chunks below each as the relevant ones."""

    queries: Queries
    judgements: Judgements
    headings: int
    """Headings that were found, of which some were taken."""
    in_text: int
    """Queries that stand word for word in one of their chunks: a search for words finds those without effort."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the check can show, and what it cannot."""
        count = len(self.queries.texts)
        advantage = (
            f"{self.in_text} of {count} queries stand word for word in a chunk that they should find: sparse and "
            "hybrid search have an advantage that real questions do not give them"
        )
        return (
            f"{count} queries were made of {self.headings:,} titles and headings",
            f"this check can show {CAN}",
            f"it cannot show {CANNOT}",
            *([advantage] if self.in_text else []),
        )


def make_queries(points: PointsFile, count: int, seed: int) -> MadeQueries:
    """Queries of titles and headings in the metadata; raises `UsageError` if there are none."""
    chunks: dict[str, list[str]] = {}
    told: dict[str, bool] = {}
    for chunk_id, record, text in read_records(points):
        heading = _heading(record)
        if heading is None:
            continue
        chunks.setdefault(heading, []).append(chunk_id)
        told[heading] = told.get(heading, False) or _normal(heading) in _normal(text)
    usable = [heading for heading, found in chunks.items() if len(found) <= MOST_CHUNKS]
    if not usable:
        names = ", ".join((*PATH_FIELDS[:2], *TITLE_FIELDS[:4]))
        raise UsageError(
            f"{points.collection} has no titles or headings to make queries of: no metadata field such as {names} has "
            f"a text of {FEWEST_WORDS} words or more. Give --queries and --qrels."
        )
    chosen = sorted(random.Random(seed).sample(usable, min(count, len(usable))), key=usable.index)
    texts = {f"made-{number}": heading for number, heading in enumerate(chosen, 1)}
    grades = {name: dict.fromkeys(chunks[heading], 1) for name, heading in texts.items()}
    in_text = sum(told[heading] for heading in chosen)
    return MadeQueries(Queries(texts), Judgements(grades), len(usable), in_text)


def save_queries(folder: Path, queries: Queries, judgements: Judgements) -> None:
    """Write queries and judgements as JSON Lines, to read, to correct, and to use again."""
    lines = [json.dumps({"_id": key, "text": text}, ensure_ascii=False) for key, text in queries.texts.items()]
    pairs = [
        json.dumps({"query-id": query, "corpus-id": document, "score": grade}, ensure_ascii=False)
        for query, found in judgements.grades.items()
        for document, grade in found.items()
    ]
    try:
        for name, content in (("queries.jsonl", lines), ("qrels.jsonl", pairs)):
            with atomic_file(folder / name) as file:
                file.write(("\n".join(content) + "\n").encode(errors="backslashreplace"))
    except OSError as error:
        raise OutputError(f"queries cannot be written to {folder}: {error.strerror}.") from error


def _heading(record: Mapping[str, Any]) -> str | None:
    """The most exact heading of a chunk: the last of its section path, else its title; None if it has none."""
    for found in _values(record, PATH_FIELDS):
        parts = [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
        if isinstance(found, str):
            parts = re.split(r"\s*(?:>|»|/|\|)\s*", found)
        if heading := _usable(" ".join(parts[-1:])) or _usable(" ".join(parts[-2:])):
            return heading
    return next((heading for found in _values(record, TITLE_FIELDS) if (heading := _usable(found))), None)


def _values(record: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[Any]:
    metadata = record.get("metadata")
    for place in (metadata, record):
        if isinstance(place, Mapping):
            yield from (place[name] for name in names if place.get(name))


def _usable(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    text = " ".join(re.sub(r"^[#\s\d.]+", "", value).split())
    words = re.findall(r"\w+", text)
    # scripts that put no blanks between words have one long word
    enough = len(words) >= FEWEST_WORDS or (not text.isascii() and len(text) >= 2 * FEWEST_WORDS)
    return text if enough and len(text) <= LONGEST_QUERY else None


def _normal(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))
