"""`qdrant/`: a real Qdrant Edge shard, closed, ready to be opened by any program that has qdrant-edge."""

from __future__ import annotations

from pathlib import Path

from qdrant_edge import (
    Distance,
    EdgeConfig,
    EdgeOptimizersConfig,
    EdgeShard,
    EdgeVectorParams,
    Point,
    UpdateOperation,
)

from ultimate_embedder.export.points import Points, plain_vector
from ultimate_embedder.files import whole_folder
from ultimate_embedder.vectors import UNNAMED

UPSERT_POINTS = 256
EXACT_SEARCH = 10**9  # no HNSW: exact search is fast at this size, and building the graph takes minutes


def write(points: Points, path: Path) -> None:
    """Build the shard beside `path`, close it, and move it there."""
    params = {name: EdgeVectorParams(size=dim, distance=Distance.Cosine) for name, dim in points.dims.items()}
    config = EdgeConfig(
        vectors=params.get(UNNAMED, params),
        optimizers=EdgeOptimizersConfig(indexing_threshold=EXACT_SEARCH),
        wal_enabled=False,  # the folder is renamed into place when whole; a log would only take space
    )
    with whole_folder(path) as folder:
        shard = EdgeShard.create(str(folder), config)
        try:
            for block in points.blocks():
                for start in range(0, len(block), UPSERT_POINTS):
                    rows = range(start, min(start + UPSERT_POINTS, len(block)))
                    shard.update(
                        UpdateOperation.upsert_points(
                            [
                                Point(
                                    id=block.point_ids[row],
                                    vector=plain_vector(block.vectors, row),
                                    payload=block.payload(row),
                                )
                                for row in rows
                            ]
                        )
                    )
            shard.flush()
        finally:
            shard.close()
