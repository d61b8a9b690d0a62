"""A collection of the server: its points are in a shard of Qdrant Edge, its settings in the words of the protocol."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pydantic_core
import qdrant_edge as edge
from qdrant_client.http import models

from tests.support.qdrant.errors import RefusedError

Json = dict[str, Any]
PointKey = int | str

EXACT_SEARCH = 10**9
SCROLLED_POINTS = 1000
UNNAMED = ""


class StoredCollection:
    """A collection; what is asked of it goes to the engine."""

    def __init__(
        self,
        vectors: models.VectorsConfig | None = None,
        points: Mapping[str, models.Record] | None = None,
        metadata: Any = None,
        sparse_vectors: Mapping[str, models.SparseVectorParams] | None = None,
        settings: Json | None = None,
    ) -> None:
        self.vectors = vectors
        self.sparse_vectors = sparse_vectors or {}
        self.metadata = metadata
        self.settings = settings or {}
        """The rest of the request that created it, and of later ones that changed it: `hnsw_config` and others."""
        self.indexes: dict[str, Any] = {}
        """Payload indexes: field and schema, as they were asked for."""
        self.points = StoredPoints(self)
        self.lock = threading.Lock()
        self._shard: edge.EdgeShard | None = None
        self.points.update(points or {})

    @property
    def shard(self) -> edge.EdgeShard:
        """The engine. Most collections of tests are never asked, so that it is opened when it is needed."""
        if self._shard is None:
            folder = tempfile.mkdtemp(prefix="qdrant-server-")
            self._shard = edge.EdgeShard.create(folder, _edge_config(self.vectors, self.sparse_vectors))
            weakref.finalize(self, _remove, self._shard, Path(folder))
        return self._shard

    def upsert(self, points: Sequence[Mapping[str, Any]]) -> None:
        """Store points of the protocol."""
        self.update(edge.UpdateOperation.upsert_points([_edge_point(each) for each in points]))

    def update(self, operation: edge.UpdateOperation) -> None:
        """Change points, one request at a time."""
        with self.lock:
            self.shard.update(operation)

    def describe(self) -> Json:
        """The answer to `GET /collections/NAME`."""
        params = {name: value for name, value in self.settings.items() if name in models.CollectionParams.model_fields}
        config = models.CollectionConfig(
            params=models.CollectionParams(**{**params, "vectors": self.vectors}),
            hnsw_config=models.HnswConfig(m=16, ef_construct=100, full_scan_threshold=10_000),
            # the first two are required by qdrant-client 1.15, as by servers of that time, and optional since
            optimizer_config=models.OptimizersConfig(
                deleted_threshold=0.2, vacuum_min_vector_number=1000, default_segment_number=0, flush_interval_sec=5
            ),
        )
        info = models.CollectionInfo(
            status=models.CollectionStatus.GREEN,
            optimizer_status=models.OptimizersStatusOneOf.OK,
            points_count=len(self.points),
            indexed_vectors_count=0,
            segments_count=1,
            config=config,
            payload_schema={},
        )
        described: Json = pydantic_core.to_jsonable_python(info, exclude_none=True)
        described["config"]["params"] |= _if_any("sparse_vectors", self.sparse_vectors)
        for asked, answered in CONFIG_NAMES.items():
            if self.settings.get(asked):
                described["config"][answered] = {
                    **described["config"].get(answered, {}),
                    **self.settings[asked],
                }
        described["payload_schema"] = {name: self._describe_index(name) for name in self.indexes}
        if self.metadata is not None:  # which the models of qdrant-client 1.15 do not have
            described["config"]["metadata"] = self.metadata
        return described

    def _describe_index(self, field: str) -> Json:
        info, schema = self.shard.info().payload_schema[field], self.indexes[field]
        kind = schema["type"] if isinstance(schema, dict) else schema
        return {"data_type": kind, "points": info.points, **_if_any("params", isinstance(schema, dict) and schema)}


CONFIG_NAMES = {
    "hnsw_config": "hnsw_config",
    "optimizers_config": "optimizer_config",
    "wal_config": "wal_config",
    "quantization_config": "quantization_config",
    "strict_mode_config": "strict_mode_config",
}
"""Settings of a collection: their names in a request and in an answer."""


class StoredPoints(MutableMapping[PointKey, models.Record]):
    """The points of a collection by id, for tests that look into a server, or change what it has."""

    def __init__(self, collection: StoredCollection) -> None:
        self._collection = weakref.proxy(collection)

    def __getitem__(self, point: PointKey) -> models.Record:
        found = self._collection.shard.retrieve([point], with_payload=True, with_vector=True)
        if not found:
            raise KeyError(point)
        return _record(found[0])

    def __setitem__(self, point: PointKey, record: models.Record) -> None:
        self._collection.upsert([{"id": point, "vector": record.vector or {}, "payload": record.payload}])

    def __delitem__(self, point: PointKey) -> None:
        self[point]
        self._collection.update(edge.UpdateOperation.delete_points([point]))

    def __iter__(self) -> Iterator[PointKey]:
        return iter([point for point, _ in self.items()])

    def __len__(self) -> int:
        return int(self._collection.shard.count(edge.CountRequest(exact=True)))

    def items(self) -> Any:
        """Ids and points, read in pages."""
        return [(record.id, record) for record in self.values()]

    def values(self) -> Any:
        """All points, read in pages."""
        records: list[models.Record] = []
        offset = None
        while True:
            request = edge.ScrollRequest(offset=offset, limit=SCROLLED_POINTS, with_payload=True, with_vector=True)
            page, offset = self._collection.shard.scroll(request)
            records += map(_record, page)
            if offset is None:
                return records

    def clear(self) -> None:
        """Delete all points."""
        self._collection.update(edge.UpdateOperation.delete_points_by_filter(edge.Filter()))


def json_id(point: Any) -> PointKey:
    """An id of the engine as JSON has it."""
    return point if isinstance(point, int) else str(point)


def json_vector(vector: Any) -> Any:
    """A vector of the engine as JSON has it."""
    if isinstance(vector, dict):
        return {name: json_vector(each) for name, each in vector.items()}
    if isinstance(vector, edge.SparseVector):
        return {"indices": vector.indices, "values": vector.values}
    return vector


def edge_vector(vector: Any) -> Any:
    """A vector of a request as the engine has it."""
    match vector:
        case {"indices": indices, "values": values}:
            return edge.SparseVector(indices=indices, values=values)
        case {"text": _, **_rest} | {"image": _, **_rest}:
            raise RefusedError(400, "Inference is not available here: send vectors")
        case dict():
            return {name: edge_vector(each) for name, each in vector.items()}
    return vector


def _record(found: edge.Record) -> models.Record:
    vector = json_vector(found.vector)
    return models.Record(id=json_id(found.id), vector=vector or None, payload=found.payload)


def _edge_point(point: Mapping[str, Any]) -> edge.Point:
    return edge.Point(id=point["id"], vector=edge_vector(point["vector"]), payload=point.get("payload") or {})


def _edge_config(vectors: Any, sparse: Mapping[str, models.SparseVectorParams]) -> edge.EdgeConfig:
    by_name: dict[str, models.VectorParams] = vectors if isinstance(vectors, dict) else {UNNAMED: vectors}
    dense = {name: _edge_params(params) for name, params in by_name.items() if params is not None}
    return edge.EdgeConfig(
        vectors=dense,
        sparse_vectors={
            name: edge.EdgeSparseVectorParams(
                modifier=edge.Modifier.Idf if each.modifier is models.Modifier.IDF else None
            )
            for name, each in sparse.items()
        },
        optimizers=edge.EdgeOptimizersConfig(indexing_threshold=EXACT_SEARCH),
        max_search_threads=1,
        wal_enabled=False,
    )


def _edge_params(params: models.VectorParams) -> edge.EdgeVectorParams:
    distances = {
        models.Distance.COSINE: edge.Distance.Cosine,
        models.Distance.EUCLID: edge.Distance.Euclid,
        models.Distance.DOT: edge.Distance.Dot,
        models.Distance.MANHATTAN: edge.Distance.Manhattan,
    }
    several = params.multivector_config and edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
    return edge.EdgeVectorParams(
        size=params.size, distance=distances[params.distance], multivector_config=several or None
    )


def _if_any(name: str, value: Any) -> Json:
    return {name: pydantic_core.to_jsonable_python(value, exclude_none=True)} if value else {}


def _remove(shard: edge.EdgeShard, folder: Path) -> None:
    shard.close()
    shutil.rmtree(folder, ignore_errors=True)
