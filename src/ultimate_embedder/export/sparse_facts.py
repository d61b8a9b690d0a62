"""What is recorded of the sparse vectors of a collection, in its exports and their journal: how to encode queries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ultimate_embedder.description import bm25_settings
from ultimate_embedder.names import name_problem
from ultimate_embedder.state import Fields, UnfitError
from ultimate_embedder.types import SparseFacts

METHODS = ("bm25", "splade")
MODIFIERS = (None, "idf")


def sparse_record(facts: Sequence[SparseFacts]) -> list[dict[str, Any]]:
    """As it is stored."""
    return json.loads(json.dumps([asdict(each) for each in facts]))  # type: ignore[no-any-return]


def parse_sparse_facts(fields: Fields) -> SparseFacts:
    """What was stored of one sparse vector; raises `UnfitError` if it is not that."""
    method, modifier = fields.text("method"), fields.text_or_none("modifier")
    if method not in METHODS or modifier not in MODIFIERS:
        raise UnfitError(f"a sparse vector is made by {method!r} and {modifier!r}, which are not known")
    name = fields.text("name")
    if problem := name_problem(name):
        raise UnfitError(f"the name of a sparse vector {problem}")
    is_bm25 = method == "bm25"
    avg_len = fields.number("avg_len") if is_bm25 else None
    if avg_len is not None and avg_len <= 0:
        raise UnfitError("avg_len is not above 0")
    return SparseFacts(
        name=name,
        method="bm25" if is_bm25 else "splade",
        fingerprint=fields.text("fingerprint"),
        model=fields.text("model"),
        digest=fields.text("digest"),
        modifier="idf" if modifier else None,
        values_per_point=fields.number("values_per_point"),
        empty=fields.count("empty"),
        bm25=bm25_settings(fields.inner("bm25")) if is_bm25 else None,
        avg_len=avg_len,
    )


def read_sparse_facts(record: Any) -> tuple[SparseFacts, ...]:
    """What was stored of all sparse vectors, in an export; raises `UnfitError` if it is not that."""
    if record is None:
        return ()
    if not isinstance(record, list) or not all(isinstance(each, Mapping) for each in record):
        raise UnfitError("what it says of sparse vectors is no list of objects")
    return tuple(parse_sparse_facts(Fields(each, sealed=True)) for each in record)
