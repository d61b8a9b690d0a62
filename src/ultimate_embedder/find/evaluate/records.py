"""Read files of queries and judgements: JSON Lines, JSON, TSV, CSV, TREC, Parquet; what cannot be read is counted."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ultimate_embedder.chunks import guess_suffix, open_text, read_records
from ultimate_embedder.errors import UsageError
from ultimate_embedder.terminal import printable
from ultimate_embedder.types import Rejected

LOOK_CHARACTERS = 1 << 16
LONGEST_LINE = 1 << 20  # characters of a query or a judgement
LARGEST_MAPPING = 64 << 20  # characters of a JSON object, which is read into memory
MOST_EXAMPLES = 3
LONGEST_EXAMPLE = 60
RECORD_KEYS = frozenset(["_id", "id", "qid", "query_id", "query-id", "text"])  # of one record, not of ids
BLANKS = " \t\r\n\f\v\ufeff"

Values = Mapping[str, Any] | Sequence[str]
"""A record by the names of its fields, or the values of a line without a header."""


@dataclass(frozen=True)
class Entry:
    """A record and where it is, for messages."""

    place: str
    values: Values


@dataclass
class Problems:
    """What was skipped or changed on reading, by reason, with the first examples."""

    examples: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, example: object = "") -> None:
        """Count a problem; `reason` is the same for all of its kind."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        shown = self.examples.setdefault(reason, [])
        if len(shown) < MOST_EXAMPLES:
            shown.append(shorten_example(example))

    def sentences(self) -> list[str]:
        """A line for each kind: `3 x reason (first: ...)`."""
        return [f"{count:,} x {reason} ({', '.join(self.examples[reason])})" for reason, count in self.counts.items()]


def shorten_example(value: object) -> str:
    """A value from a file, as it is shown."""
    words = printable(str(value))
    return words if len(words) <= LONGEST_EXAMPLE else f"{words[:LONGEST_EXAMPLE]}..."


def read_entries(path: Path, problems: Problems, header: Callable[[Sequence[str]], bool]) -> Iterator[Entry]:
    """Yield the records of a file; `header` says whether the values of the first line are names of columns."""
    try:
        suffix = guess_suffix(path)
        if suffix in (".parquet", ".arrow"):
            yield from _read_records(path, problems)
            return
        if suffix == ".json":
            mapping = _read_mapping(path)
            if mapping is not None:
                yield from (Entry(shorten_example(key), {"key": key, "value": mapping[key]}) for key in mapping)
            else:
                yield from _read_records(path, problems)
            return
        yield from _read_lines(path, problems, header)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error


def _read_records(path: Path, problems: Problems) -> Iterator[Entry]:
    for record in read_records(path, path.name):
        if isinstance(record, Rejected):
            problems.add("cannot be read", record.reason)
        elif isinstance(record[1], Mapping):
            yield Entry(f"record {record[0] + 1}", record[1])
        else:
            problems.add("is not an object", f"record {record[0] + 1}")


def _read_mapping(path: Path) -> dict[str, Any] | None:
    """A file that is one JSON object whose values are texts, objects or lists; None if it is something else."""
    with open_text(path) as file:
        text = file.read(LARGEST_MAPPING + 1)
        if len(text) > LARGEST_MAPPING:
            while file.read(LARGEST_MAPPING):  # to its end, so that damage is noticed
                pass
            return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not found:
        return None
    kinds = {type(value) for value in found.values()}
    return found if kinds <= {dict, list} or (kinds == {str} and RECORD_KEYS.isdisjoint(found)) else None


def _read_lines(path: Path, problems: Problems, header: Callable[[Sequence[str]], bool]) -> Iterator[Entry]:
    columns: list[str] | None = None
    split: Callable[[str], list[str]] | None = None
    with open_text(path) as file:
        number = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE and not line.endswith("\n"):
                while (rest := file.readline(LONGEST_LINE)) and not rest.endswith("\n"):
                    pass
                problems.add(f"has more than {LONGEST_LINE:,} characters", f"line {number}")
                continue
            line = line.strip("\r\n\ufeff")
            if not line.strip(BLANKS):
                continue
            if _is_binary(line):
                raise UsageError(f"{path} is not text: line {number} has bytes that are no characters.")
            first = split is None
            split = split or _splitter(line)
            try:
                values = split(line)
            except csv.Error as error:
                problems.add("is not valid CSV", f"line {number}: {error}")
                continue
            if first and header(values):
                columns = [value.strip(BLANKS) for value in values]
            elif columns is None:
                yield Entry(f"line {number}", values)
            elif len(values) != len(columns):
                problems.add(f"has not {len(columns)} values, as the header has", f"line {number}")
            else:
                yield Entry(f"line {number}", dict(zip(columns, values, strict=True)))


def _is_binary(line: str) -> bool:
    return "\0" in line or any("\ud800" <= character <= "\udfff" for character in line)


def _splitter(line: str) -> Callable[[str], list[str]]:
    """How the lines of a file are split, by its first: at tabs, at commas or semicolons, or at white space (TREC)."""
    if "\t" in line:
        return lambda text: text.split("\t")  # no quotes: in a text they stand for themselves
    words = line.split()
    if len(words) >= 3 and not any(mark in line for mark in ",;"):
        return lambda text: text.split()
    delimiter = max(",;", key=line.count)
    return lambda text: next(csv.reader([text], delimiter=delimiter, strict=True), [])
