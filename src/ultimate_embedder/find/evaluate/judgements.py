"""Judgements (qrels): which documents are relevant for which query, and how much."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ultimate_embedder.errors import UsageError
from ultimate_embedder.find.evaluate.queries import as_id, first_of
from ultimate_embedder.find.evaluate.records import BLANKS, Entry, Problems, read_entries, shorten_example

QUERY_NAMES = ("query-id", "query_id", "queryid", "qid", "q_id", "query", "topic", "topic_id")
DOCUMENT_NAMES = (
    *("corpus-id", "corpus_id", "doc-id", "doc_id", "docid", "docno", "document_id", "chunk_id", "pid", "passage_id"),
    *("document", "doc"),
)
GRADE_NAMES = ("score", "relevance", "rel", "grade", "label", "judgement", "judgment", "rating")
LARGEST_GRADE = 1_000_000
MOST_JUDGEMENTS = 5_000_000
RUN_COLUMNS = 6
FORMATS = (
    "BEIR (query-id, corpus-id, score with tabs between them), TREC (query, 0, document, grade), or JSON Lines with "
    "these names"
)

Grades = dict[str, dict[str, int]]
"""Grades by query and document; 0 is judged and not relevant."""
Given = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Judgements:
    """Grades by query and document, and what was skipped or changed."""

    grades: Grades
    problems: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of judged pairs."""
        return sum(map(len, self.grades.values()))


def read_judgements(source: Path | Given, least_grade: int | None = None) -> Judgements:
    """The judgements of a file, or a dictionary of dictionaries; raises `UsageError` if there is none.

    With `least_grade`, every grade from there on counts as 1, and every lower one as 0.
    """
    problems = Problems()
    grades: Grades = {}
    count = 0
    for place, query, document, value in _given(source, problems):
        grade = _grade(value)
        if query is None or document is None or grade is None:
            what = "query" if query is None else "document" if document is None else "whole number as its grade"
            problems.add(f"has no {what}, and is skipped", f"{place}: {shorten_example(value)}" if query else place)
            continue
        if abs(grade) > LARGEST_GRADE:
            problems.add(f"has a grade beyond {LARGEST_GRADE:,}, and is skipped", place)
            continue
        if grade < 0:
            problems.add("has a negative grade, which counts as 0", place)
            grade = 0
        if least_grade is not None:
            grade = int(grade >= least_grade)
        of_query = grades.setdefault(query, {})
        if document in of_query:
            differs = of_query[document] != grade
            problems.add(f"repeats a judgement{', with another grade: the higher counts' if differs else ''}", place)
            grade = max(grade, of_query[document])
        else:
            count += 1
        of_query[document] = grade
        if count > MOST_JUDGEMENTS:
            raise UsageError(f"{source} has more than {MOST_JUDGEMENTS:,} judgements. Evaluate a sample of them.")
    name = str(source) if isinstance(source, Path) else "qrels"
    if not grades:
        found = "; ".join(problems.sentences()) or "it is empty"
        raise UsageError(f"{name} has no judgements: {found}. Give {FORMATS}.")
    return Judgements(grades, tuple(f"{name}: {each}" for each in problems.sentences()))


def _given(source: Path | Given, problems: Problems) -> Iterator[tuple[str, str | None, str | None, Any]]:
    if isinstance(source, Mapping):
        for query, found in source.items():
            yield from _of_query(str(query), found)
        return
    for entry in read_entries(source, problems, _is_header):
        values = entry.values
        if isinstance(values, Mapping) and values.keys() == {"key", "value"}:  # one object for all
            yield from _of_query(values["key"], values["value"])
        else:
            yield (entry.place, *_fields(entry, source))


def _of_query(query: str, found: Any) -> Iterator[tuple[str, str | None, str | None, Any]]:
    """The judgements of one query: a mapping of documents to grades, or a list of relevant documents."""
    if isinstance(found, Mapping):
        pairs: Iterable[tuple[Any, Any]] = found.items()
    else:
        pairs = ((each, 1) for each in (found if isinstance(found, list | tuple | set) else [None]))
    yield from ((query, query, as_id(document), grade) for document, grade in pairs)


def _fields(entry: Entry, source: Path) -> tuple[str | None, str | None, Any]:
    values = entry.values
    if isinstance(values, Mapping):
        grade = first_of(values, GRADE_NAMES)
        query, document = first_of(values, QUERY_NAMES), first_of(values, DOCUMENT_NAMES)
        has_grade = any(str(name).lower() in GRADE_NAMES for name in values)
        return as_id(query), as_id(document), grade if has_grade else 1
    if len(values) == RUN_COLUMNS:
        raise UsageError(f"{source} has {RUN_COLUMNS} columns, like the results of a search in TREC. Give {FORMATS}.")
    if len(values) == 4:  # TREC: the second column is not used
        return as_id(values[0]), as_id(values[2]), values[3]
    if len(values) == 3:
        return as_id(values[0]), as_id(values[1]), values[2]
    if len(values) == 2:
        return as_id(values[0]), as_id(values[1]), 1
    return None, None, None


def _is_header(values: Sequence[str]) -> bool:
    names = [value.strip(BLANKS).lower() for value in values]
    return any(name in QUERY_NAMES for name in names) and any(name in DOCUMENT_NAMES for name in names)


def _grade(value: Any) -> int | None:
    """A whole number, also as text or as 1.0; None if it is none."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    if isinstance(value, str) and len(value) <= 40:
        try:
            return int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
    return int(value) if isinstance(value, float) and value.is_integer() else None
