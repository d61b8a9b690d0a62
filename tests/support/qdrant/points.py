"""Requests of the REST protocol about the points of one collection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import qdrant_edge as edge

from tests.support.qdrant.errors import RefusedError
from tests.support.qdrant.filters import edge_filter
from tests.support.qdrant.queries import query, search, selected
from tests.support.qdrant.stored import Json, StoredCollection, json_id, json_vector

SCROLL_LIMIT = 10
UPDATED = {"operation_id": 0, "status": "completed"}
Update = edge.UpdateOperation


def upsert(collection: StoredCollection, wanted: Json) -> Json:
    """`PUT points`: a list of points, or a batch of columns."""
    if "batch" in wanted:
        points = list(_rows(wanted["batch"]))
    elif "points" in wanted:
        points = wanted["points"]
    else:
        raise ValueError("neither points nor batch")
    if points:
        collection.upsert(points)
    return UPDATED


def retrieve(collection: StoredCollection, wanted: Json) -> list[Json]:
    """`POST points`: points by their ids."""
    with_payload = wanted.get("with_payload", True)
    found = collection.shard.retrieve(wanted["ids"], selected(with_payload), wanted.get("with_vector") or False)
    return [_record(each) for each in found]


def scroll(collection: StoredCollection, wanted: Json) -> Json:
    """`points/scroll`: points in the order of their ids, page by page."""
    request = edge.ScrollRequest(
        offset=wanted.get("offset"),
        limit=wanted.get("limit") or SCROLL_LIMIT,
        filter=edge_filter(wanted.get("filter")),
        with_payload=selected(wanted.get("with_payload", True)),
        with_vector=wanted.get("with_vector") or False,
        order_by=_order(wanted.get("order_by")),
    )
    found, following = collection.shard.scroll(request)
    return {
        "points": [_record(each) for each in found],
        "next_page_offset": None if following is None else json_id(following),
    }


def count(collection: StoredCollection, wanted: Json) -> Json:
    """`points/count`."""
    return {"count": collection.shard.count(edge.CountRequest(exact=True, filter=edge_filter(wanted.get("filter"))))}


def query_points(collection: StoredCollection, wanted: Json) -> Json:
    """`points/query`."""
    return {"points": query(collection, wanted)}


def query_batch(collection: StoredCollection, wanted: Json) -> list[Json]:
    """`points/query/batch`."""
    return [query_points(collection, each) for each in wanted["searches"]]


def search_batch(collection: StoredCollection, wanted: Json) -> list[list[Json]]:
    """`points/search/batch`."""
    return [search(collection, each) for each in wanted["searches"]]


def delete(collection: StoredCollection, wanted: Json) -> Json:
    """`points/delete`: by ids, or by a filter."""
    collection.update(_chosen(wanted, Update.delete_points, Update.delete_points_by_filter))
    return UPDATED


def set_payload(collection: StoredCollection, wanted: Json) -> Json:
    """`POST points/payload`: add fields."""
    more = (wanted["payload"], wanted.get("key"))
    collection.update(_chosen(wanted, Update.set_payload, Update.set_payload_by_filter, *more))
    return UPDATED


def overwrite_payload(collection: StoredCollection, wanted: Json) -> Json:
    """`PUT points/payload`: replace the payload."""
    more = (wanted["payload"], wanted.get("key"))
    collection.update(_chosen(wanted, Update.overwrite_payload, Update.overwrite_payload_by_filter, *more))
    return UPDATED


def delete_payload(collection: StoredCollection, wanted: Json) -> Json:
    """`points/payload/delete`: drop fields."""
    collection.update(_chosen(wanted, Update.delete_payload, Update.delete_payload_by_filter, wanted["keys"]))
    return UPDATED


def clear_payload(collection: StoredCollection, wanted: Json) -> Json:
    """`points/payload/clear`."""
    collection.update(_chosen(wanted, Update.clear_payload, Update.clear_payload_by_filter))
    return UPDATED


def create_index(collection: StoredCollection, wanted: Json) -> Json:
    """`PUT index`: the engine builds it; what was asked for is kept as it is."""
    field, schema = wanted["field_name"], wanted.get("field_schema") or "keyword"
    kind = schema["type"] if isinstance(schema, dict) else schema
    collection.update(Update.create_field_index(field, getattr(edge.PayloadSchemaType, kind.capitalize())))
    collection.indexes[field] = schema
    return UPDATED


def delete_index(collection: StoredCollection, field: str) -> Json:
    """`DELETE index/FIELD`."""
    collection.update(Update.delete_field_index(field))
    collection.indexes.pop(field, None)
    return UPDATED


POINT_REQUESTS: dict[tuple[str, ...], Callable[[StoredCollection, Json], Any]] = {
    ("PUT", "points"): upsert,
    ("POST", "points"): retrieve,
    ("POST", "points", "scroll"): scroll,
    ("POST", "points", "count"): count,
    ("POST", "points", "query"): query_points,
    ("POST", "points", "query", "batch"): query_batch,
    ("POST", "points", "search"): search,
    ("POST", "points", "search", "batch"): search_batch,
    ("POST", "points", "delete"): delete,
    ("POST", "points", "payload"): set_payload,
    ("PUT", "points", "payload"): overwrite_payload,
    ("POST", "points", "payload", "delete"): delete_payload,
    ("POST", "points", "payload", "clear"): clear_payload,
    ("PUT", "index"): create_index,
}
"""By method and path below the collection."""


def _rows(batch: Json) -> Iterator[Json]:
    vectors, payloads = batch["vectors"], batch.get("payloads") or [None] * len(batch["ids"])
    if isinstance(vectors, dict):
        names = list(vectors)
        columns = [dict(zip(names, each, strict=True)) for each in zip(*vectors.values(), strict=True)]
    else:
        columns = vectors
    for point, vector, payload in zip(batch["ids"], columns, payloads, strict=True):
        yield {"id": point, "vector": vector, "payload": payload}


def _chosen(wanted: Json, by_ids: Callable[..., Any], by_filter: Callable[..., Any], *more: Any) -> Any:
    """The operation for points that are given by their ids, or by a filter."""
    if wanted.get("points") is not None:
        return by_ids(wanted["points"], *more)
    if wanted.get("filter") is None:
        raise RefusedError(400, "neither points nor a filter")
    return by_filter(edge_filter(wanted["filter"]), *more)


def _order(wanted: Any) -> edge.OrderBy | None:
    if wanted is None:
        return None
    given = {"key": wanted} if isinstance(wanted, str) else wanted
    down = given.get("direction") == "desc"
    return edge.OrderBy(given["key"], edge.Direction.Desc if down else edge.Direction.Asc, given.get("start_from"))


def _record(found: edge.Record) -> Json:
    answer: Json = {"id": json_id(found.id)}
    if found.payload is not None:
        answer["payload"] = found.payload
    if found.vector is not None:
        answer["vector"] = json_vector(found.vector)
    return answer
