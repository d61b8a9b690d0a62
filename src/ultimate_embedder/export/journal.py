"""`exports.json`: which exports a collection has, and what they were made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ultimate_embedder.export.sparse_facts import parse_sparse_facts, sparse_record
from ultimate_embedder.names import name_problem
from ultimate_embedder.output import CollectionOutput, export_name_problem
from ultimate_embedder.state import Damaged, Fields, UnfitError, read_state, write_state

VECTOR_KINDS = ("dense", "sparse")

Entries = dict[str, dict[str, Any]]


def read_export_journal(folder: Path) -> Entries:
    """The journal of a collection's exports, by kind; what is damaged is left out."""
    return _read(folder)[0]


def journal_problems(folder: Path) -> list[str]:
    """What is damaged of the journal."""
    return _read(folder)[1]


def write_export_journal(folder: Path, journal: Entries) -> None:
    """Replace the journal, atomically."""
    write_state(CollectionOutput(folder).export_journal, journal)


def _read(folder: Path) -> tuple[Entries, list[str]]:
    path = CollectionOutput(folder).export_journal
    found = read_state(path, _parse)
    if found is None:
        return {}, []
    if isinstance(found, Damaged):
        return {}, [str(found)]
    entries, problems = found
    return entries, [str(Damaged(path, f"is damaged ({problem})")) for problem in problems]


def _parse(fields: Fields) -> tuple[Entries, list[str]]:
    entries: Entries = {}
    problems = []
    for kind in fields:
        try:
            if problem := name_problem(kind):
                raise UnfitError(f"this kind of export {problem}")
            entries[kind] = _entry(fields.inner(kind))
        except UnfitError as error:
            problems.append(f"{kind!a}: {error}")
    fields.values()  # what is unknown was written by another version
    return entries, problems


def _entry(fields: Fields) -> dict[str, Any]:
    """The values that this version knows; those after `sha256` are missing in journals of earlier versions."""
    name = fields.text("name")
    if problem := export_name_problem(name):
        raise UnfitError(f"the name {name!r} {problem}")
    entry: dict[str, Any] = {
        "name": name,
        "identity": fields.text("identity"),
        "size_bytes": fields.count("size_bytes"),
        "sha256": fields.sha256("sha256"),
    }
    later: dict[str, Callable[[str], Any]] = {
        "rows": fields.count,
        "found": fields.count_or_none,
        "split": fields.count,
        "split_points": fields.count,
        "distinct_texts": fields.count,
        "target": fields.text,
        "passes": fields.texts,
        "origin": lambda name: fields.inner(name).values(),  # checked by whoever compares it
        "hnsw": fields.text,
        "vectors": lambda name: [_vector(each) for each in fields.inner_list(name)],
        "sparse": lambda name: sparse_record([parse_sparse_facts(each) for each in fields.inner_list(name)]),
    }
    return entry | {name: read(name) for name, read in later.items() if name in fields}


def _vector(fields: Fields) -> Mapping[str, Any]:
    kind = fields.text("kind") if "kind" in fields else VECTOR_KINDS[0]
    if kind not in VECTOR_KINDS:
        raise UnfitError(f"kind {kind!r} is none of {', '.join(VECTOR_KINDS)}")
    return {"name": fields.text("name"), "dim": fields.count_or_none("dim"), "kind": kind}
