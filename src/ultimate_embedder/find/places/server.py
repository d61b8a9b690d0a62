"""Search a collection on a Qdrant server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from ultimate_embedder.export import Server
from ultimate_embedder.find.filters import Condition, Payload, as_json
from ultimate_embedder.find.places.base import (
    ENGINE_FUSIONS,
    ENGINE_RRF_K,
    Found,
    Place,
    QueryLeg,
    engine_id,
    point_key,
)
from ultimate_embedder.sparse import SparseVectors

RRF_WITH_K = (1, 16)  # the first server whose RRF takes a k
QUERY = "/points/query"


class ServerPlace(Place):
    """A collection, or an alias, on a server."""

    def __init__(self, server: Server, target: str, version: str | None, points: int, stack: ExitStack) -> None:
        """`stack` ends the connection."""
        super().__init__()
        self.label = f"{target} on {server.url}"
        self._server = server
        self._target = target
        self._stack = stack
        self._version = _numbers(version)
        self.points = points

    def nearest(self, leg: QueryLeg, limit: int, conditions: Sequence[Condition]) -> list[Found]:
        """The points with the highest scores, best first."""
        placed = self.placed(conditions)
        if placed is None or leg.is_empty:
            return []
        return self._found(_nearest(leg, min(limit, self.points), as_json(placed)))

    def scores(self, leg: QueryLeg, keys: Sequence[str]) -> dict[str, float]:
        """The exact scores of these points."""
        if not keys or leg.is_empty:
            return {}
        chosen = {"must": [{"has_id": [engine_id(key) for key in keys]}]}
        return dict(self._found({**_nearest(leg, len(keys), chosen), "params": {"exact": True}}))

    def fused(
        self, method: str, legs: Sequence[QueryLeg], depth: int, conditions: Sequence[Condition]
    ) -> list[Found] | None:
        """All candidates, fused by the server, if it is new enough."""
        placed = self.placed(conditions)
        too_old = method == "rrf" and self._version < RRF_WITH_K
        if placed is None or method not in ENGINE_FUSIONS or too_old or any(leg.is_empty for leg in legs):
            return None
        limit = min(depth, self.points)
        query = {"rrf": {"k": ENGINE_RRF_K}} if method == "rrf" else {"fusion": "dbsf"}
        prefetches = [_nearest(leg, limit, as_json(placed)) for leg in legs]
        return self._found({"prefetch": prefetches, "query": query, "limit": limit * len(legs)})

    def payloads(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        """The payloads of points, in the order of `keys`."""

        def read(found: Any) -> dict[str, dict[str, Any]]:
            return {point_key(each["id"]): dict(each.get("payload") or {}) for each in found}

        body = {"ids": [engine_id(key) for key in keys], "with_payload": True, "with_vector": False}
        by_key = self._server.ask("read points", "POST", "/points", self._target, body, read=read)
        return [by_key.get(key, {}) for key in keys]

    def has_key(self, condition: Condition) -> bool:
        """Whether a payload has something under the path of a condition."""
        present = {"must_not": [{"is_empty": {"key": condition.place}}]}
        return bool(list(self._scroll({"limit": 1, "filter": present, "with_payload": False})))

    def sample(self, count: int) -> Iterator[Payload]:
        """Some payloads, to see which keys they have."""
        return self._scroll({"limit": count, "with_payload": True})

    def close(self) -> None:
        """End the connection."""
        self._stack.close()

    def _scroll(self, body: dict[str, Any]) -> Iterator[Payload]:
        def read(found: Any) -> list[Payload]:
            return [dict(each.get("payload") or {}) for each in found["points"]]

        return iter(self._server.ask("read points", "POST", "/points/scroll", self._target, body, read=read))

    def _found(self, body: dict[str, Any]) -> list[Found]:
        if not body["limit"]:
            return []

        def read(found: Any) -> list[Found]:
            return [Found(point_key(each["id"]), float(each["score"])) for each in found["points"]]

        return self._server.ask("search", "POST", QUERY, self._target, {**body, "with_payload": False}, read=read)


def _nearest(leg: QueryLeg, limit: int, chosen: dict[str, Any] | None) -> dict[str, Any]:
    vector = leg.vector
    if isinstance(vector, SparseVectors):
        body: dict[str, Any] = {"query": {"indices": vector.indices.tolist(), "values": vector.values.tolist()}}
    else:
        body = {"query": vector.tolist()}
    body["limit"] = limit
    if leg.name:
        body["using"] = leg.name
    if chosen:
        body["filter"] = chosen
    return body


def _numbers(version: str | None) -> tuple[int, ...]:
    words = (version or "").split(".")[:2]
    return tuple(int(word) for word in words) if all(word.isdigit() for word in words) else ()
