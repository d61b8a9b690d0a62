"""Search a Qdrant Edge shard in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ultimate_embedder.errors import OutputError
from ultimate_embedder.export import read_export_journal
from ultimate_embedder.files import size_bytes
from ultimate_embedder.find.filters import Condition, Payload, as_edge
from ultimate_embedder.find.places.base import (
    ENGINE_FUSIONS,
    ENGINE_RRF_K,
    Found,
    Place,
    QueryLeg,
    engine_id,
    point_key,
)
from ultimate_embedder.output import CollectionOutput
from ultimate_embedder.sparse import SparseVectors

if TYPE_CHECKING:
    import qdrant_edge

KIND = "qdrant"
CHECK = "Check it with 'ultimate-embedder verify', and run the same embed command again to write it anew."


class EdgePlace(Place):
    """A shard, opened so that its output stays as it is."""

    def __init__(self, shard: qdrant_edge.EdgeShard, label: str, stack: contextlib.ExitStack) -> None:
        import qdrant_edge as edge

        super().__init__()
        self.label = label
        self._shard = shard
        self._stack = stack
        self.points = int(shard.count(edge.CountRequest(exact=True)))

    def nearest(self, leg: QueryLeg, limit: int, conditions: Sequence[Condition]) -> list[Found]:
        """The points with the highest scores, best first."""
        import qdrant_edge as edge

        placed = self.placed(conditions)
        if placed is None or leg.is_empty:
            return []
        return self._found(
            edge.QueryRequest(query=_nearest(leg), limit=min(limit, self.points), filter=as_edge(placed))
        )

    def scores(self, leg: QueryLeg, keys: Sequence[str]) -> dict[str, float]:
        """The exact scores of these points."""
        import qdrant_edge as edge

        if not keys or leg.is_empty:
            return {}
        chosen = as_edge((), [engine_id(key) for key in keys])
        exact = edge.SearchParams(exact=True)
        return dict(self._found(edge.QueryRequest(query=_nearest(leg), limit=len(keys), filter=chosen, params=exact)))

    def fused(
        self, method: str, legs: Sequence[QueryLeg], depth: int, conditions: Sequence[Condition]
    ) -> list[Found] | None:
        """All candidates, fused by the engine."""
        import qdrant_edge as edge

        placed = self.placed(conditions)
        if method not in ENGINE_FUSIONS or placed is None or any(leg.is_empty for leg in legs):
            return None
        query: Any = edge.Fusion.Rrf(k=ENGINE_RRF_K) if method == "rrf" else edge.Fusion.Dbsf()
        limit, chosen = min(depth, self.points), as_edge(placed)
        prefetches = [edge.Prefetch(query=_nearest(leg), limit=limit, filter=chosen) for leg in legs]
        return self._found(edge.QueryRequest(query=query, prefetches=prefetches, limit=limit * len(legs)))

    def payloads(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        """The payloads of points, in the order of `keys`."""
        found = self._shard.retrieve([engine_id(key) for key in keys], with_payload=True, with_vector=False)
        by_key = {point_key(each.id): each.payload or {} for each in found}
        return [by_key.get(key, {}) for key in keys]

    def has_key(self, condition: Condition) -> bool:
        """Whether a payload has something under the path of a condition."""
        import qdrant_edge as edge

        present = edge.Filter(must_not=[edge.IsEmptyCondition(condition.place)])
        records, _ = self._shard.scroll(edge.ScrollRequest(limit=1, filter=present, with_payload=False))
        return bool(records)

    def sample(self, count: int) -> Iterator[Payload]:
        """Some payloads, to see which keys they have."""
        import qdrant_edge as edge

        records, _ = self._shard.scroll(edge.ScrollRequest(limit=count, with_payload=True))
        return (each.payload or {} for each in records)

    def close(self) -> None:
        """Close the shard."""
        self._stack.close()

    def _found(self, request: qdrant_edge.QueryRequest) -> list[Found]:
        if not request.limit:
            return []
        with _in_words(self.label):
            return [Found(point_key(each.id), each.score) for each in self._shard.query(request)]


def open_edge(collection: CollectionOutput) -> EdgePlace:
    """Open the Qdrant shard of a collection for searching; raises `OutputError` if it is not there, or damaged."""
    path = collection.qdrant
    if not path.is_dir():
        raise OutputError(f"{collection.folder} has no Qdrant shard")
    recorded = read_export_journal(collection.folder).get(KIND, {}).get("size_bytes", 0)
    found = size_bytes(path)
    if found < _least_bytes(recorded):  # a file that is too short would end this process without a word (SIGBUS)
        raise OutputError(f"{path} is damaged: it has {found:,} of {recorded:,} bytes. {CHECK}")
    with contextlib.ExitStack() as stack, _in_words(str(path)):
        shard = stack.enter_context(collection.open_shard(to_read=True))
        return EdgePlace(shard, f"the Qdrant shard {path}", stack.pop_all())


def _least_bytes(recorded: int) -> int:
    return recorded - (1 << 20)  # Edge deletes a small file on loading


def _nearest(leg: QueryLeg) -> qdrant_edge.Query:
    import qdrant_edge as edge

    if isinstance(leg.vector, SparseVectors):
        sparse = edge.SparseVector(leg.vector.indices.tolist(), leg.vector.values.tolist())
        return edge.Query.Nearest(sparse, using=leg.name)
    return edge.Query.Nearest(leg.vector.tolist(), using=leg.name or None)


@contextlib.contextmanager
def _in_words(label: str) -> Iterator[None]:
    """Turn what the engine raises, which has no type of its own and may be a panic, into an `OutputError`."""
    try:
        yield
    except (OutputError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, Exception) and type(error) is not Exception:
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        raise OutputError(f"Qdrant Edge cannot search {label}: {said}. {CHECK}") from error
