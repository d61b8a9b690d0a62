"""Filters of the REST protocol as those of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import qdrant_edge as edge
from qdrant_client.http import models

from tests.support.qdrant.errors import RefusedError

Json = Mapping[str, Any]

MATCHES = {
    "value": edge.MatchValue,
    "text": edge.MatchText,
    "text_any": edge.MatchTextAny,
    "phrase": edge.MatchPhrase,
    "prefix": edge.MatchPrefix,
    "substring": edge.MatchSubstring,
    "any": edge.MatchAny,
    "except": edge.MatchExcept,
}


def edge_filter(wanted: Json | None) -> edge.Filter | None:
    """The engine's filter; raises `ValueError` if Qdrant would not take it."""
    if wanted is None:
        return None
    models.Filter.model_validate(wanted)  # refuses what qdrant-client does not know
    return _filter(wanted)


def _filter(wanted: Json) -> edge.Filter:
    at_least = wanted.get("min_should")
    return edge.Filter(
        must=_conditions(wanted.get("must")),
        should=_conditions(wanted.get("should")),
        must_not=_conditions(wanted.get("must_not")),
        min_should=at_least and edge.MinShould(_conditions(at_least["conditions"]) or [], at_least["min_count"]),
    )


def _conditions(wanted: list[Json] | Json | None) -> list[Any] | None:
    if wanted is None:
        return None
    return [_condition(each) for each in (wanted if isinstance(wanted, list) else [wanted])]


def _condition(wanted: Json) -> Any:
    match wanted:
        case {"is_empty": {"key": key}}:
            return edge.IsEmptyCondition(key)
        case {"is_null": {"key": key}}:
            return edge.IsNullCondition(key)
        case {"has_id": ids}:
            return edge.HasIdCondition(set(ids))
        case {"has_vector": name}:
            return edge.HasVectorCondition(name)
        case {"nested": {"key": key, "filter": inner}}:
            return edge.NestedCondition(key, _filter(inner))
        case {"key": key}:
            return _field(key, wanted)
    return _filter(wanted)


def _field(key: str, wanted: Json) -> edge.FieldCondition:
    matched, within, count = wanted.get("match"), wanted.get("range"), wanted.get("values_count")
    if unknown := [name for name in wanted if name.startswith("geo_") and wanted[name] is not None]:
        raise RefusedError(400, f"{unknown[0]} is not spoken here")
    return edge.FieldCondition(
        key=key,
        match=matched and _match(matched),
        range=within and _range(_given(within)),
        values_count=count and edge.ValuesCount(**_given(count)),
        is_empty=wanted.get("is_empty"),
        is_null=wanted.get("is_null"),
    )


def _match(wanted: Json) -> Any:
    ((name, value),) = _given(wanted).items()
    # Edge 0.9 takes a bool of Python for the number 0 or 1
    return MATCHES[name](np.bool_(value) if isinstance(value, bool) else value)


def _range(wanted: dict[str, Any]) -> Any:
    dates = any(isinstance(value, str) for value in wanted.values())
    return edge.RangeDateTime(**wanted) if dates else edge.RangeFloat(**wanted)


def _given(fields: Json) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
