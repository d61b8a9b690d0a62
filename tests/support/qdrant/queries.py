"""Searches of the REST protocol, answered by the engine."""

from __future__ import annotations

from typing import Any

import qdrant_edge as edge

from tests.support.qdrant.errors import RefusedError
from tests.support.qdrant.filters import edge_filter
from tests.support.qdrant.stored import Json, StoredCollection, edge_vector, json_id, json_vector

LIMIT = 10


def query(collection: StoredCollection, wanted: Json) -> list[Json]:
    """The answer to `/points/query`."""
    request = edge.QueryRequest(
        limit=_limit(wanted),
        offset=wanted.get("offset") or 0,
        query=_query(collection, wanted),
        prefetches=_prefetches(collection, wanted),
        with_vector=wanted.get("with_vector") or False,
        with_payload=selected(wanted.get("with_payload")),
        filter=edge_filter(wanted.get("filter")),
        score_threshold=wanted.get("score_threshold"),
        params=edge.SearchParams(exact=True),
    )
    return [_scored(each) for each in collection.shard.query(request)]


def search(collection: StoredCollection, wanted: Json) -> list[Json]:
    """The answer to `/points/search`, the older spelling."""
    vector, using = wanted["vector"], None
    if isinstance(vector, dict):
        vector, using = vector["vector"], vector["name"]
    return query(collection, {**wanted, "query": vector, "using": using})


def selected(wanted: Any) -> Any:
    """Which fields of the payload are asked for."""
    match wanted:
        case {"include": keys}:
            return edge.PayloadSelector.Include(keys)
        case {"exclude": keys}:
            return edge.PayloadSelector.Exclude(keys)
    return False if wanted is None else wanted


def _limit(wanted: Json) -> int:
    limit = wanted.get("limit")
    return LIMIT if limit is None else int(limit)


def _prefetches(collection: StoredCollection, wanted: Json) -> list[edge.Prefetch]:
    given = wanted.get("prefetch") or []
    return [
        edge.Prefetch(
            limit=_limit(each),
            query=_query(collection, each),
            prefetches=_prefetches(collection, each),
            params=edge.SearchParams(exact=True),
            filter=edge_filter(each.get("filter")),
            score_threshold=each.get("score_threshold"),
        )
        for each in (given if isinstance(given, list) else [given])
    ]


def _query(collection: StoredCollection, wanted: Json) -> Any:
    using = wanted.get("using")
    match wanted.get("query"):
        case None:
            return None
        case {"fusion": "rrf"}:
            return edge.Fusion.Rrf(k=2)
        case {"rrf": {} as rrf}:
            return edge.Fusion.Rrf(k=2 if rrf.get("k") is None else rrf["k"], weights=rrf.get("weights"))
        case {"fusion": "dbsf"}:
            return edge.Fusion.Dbsf()
        case {"order_by": {"key": key} | str(key)}:
            return edge.OrderBy(key)
        case {"nearest": near, "mmr": {} as mmr}:
            spread, candidates = mmr.get("diversity"), mmr.get("candidates_limit") or _limit(wanted)
            relevance = 1 - (0.5 if spread is None else spread)
            return edge.Mmr(_vector(collection, near, using), relevance, candidates, using)
        case {"nearest": near}:
            return edge.Query.Nearest(_vector(collection, near, using), using=using)
        case list() | int() | str() | {"indices": _, "values": _} as near:
            return edge.Query.Nearest(_vector(collection, near, using), using=using)
    raise RefusedError(400, "this kind of query is not spoken here")


def _vector(collection: StoredCollection, near: Any, using: str | None) -> Any:
    """A vector to search with; an id stands for that point's."""
    if not isinstance(near, int | str):
        return edge_vector(near)
    found = collection.shard.retrieve([near], with_vector=True)
    if not found:
        raise RefusedError(404, f"Not found: No point with id {near} found")
    vector = found[0].vector
    return vector[using or ""] if isinstance(vector, dict) else vector


def _scored(found: edge.ScoredPoint) -> Json:
    answer: Json = {"id": json_id(found.id), "version": found.version, "score": found.score}
    if found.payload is not None:
        answer["payload"] = found.payload
    if found.vector is not None:
        answer["vector"] = json_vector(found.vector)
    return answer
