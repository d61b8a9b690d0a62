"""`qdrant/`: a Qdrant Edge shard, which any program with qdrant-edge can open."""

from __future__ import annotations

from pathlib import Path

from ultimate_embedder.export.format import ExportFormat
from ultimate_embedder.export.points import Points
from ultimate_embedder.files import atomic_folder
from ultimate_embedder.types import UNNAMED

FOLDER_NAME = "qdrant"
UPSERT_POINTS = 256
EXACT_SEARCH = 10**9  # no HNSW: exact search is fast at this size, and building the graph takes minutes


def write(points: Points, path: Path) -> None:
    """Build the shard in a temporary folder, close it, and move it to `path`."""
    import qdrant_edge as edge

    params = {
        spec.name: edge.EdgeVectorParams(size=spec.dim, distance=edge.Distance.Cosine)
        for spec in points.vectors
        if spec.dim is not None
    }
    config = edge.EdgeConfig(
        vectors=params.get(UNNAMED, params),
        optimizers=edge.EdgeOptimizersConfig(indexing_threshold=EXACT_SEARCH),
        wal_enabled=False,  # the folder is renamed when complete; a log would only take space
    )
    with atomic_folder(path) as folder:
        shard = edge.EdgeShard.create(str(folder), config)
        try:
            for block in points.blocks():
                for start in range(0, len(block), UPSERT_POINTS):
                    rows = range(start, min(start + UPSERT_POINTS, len(block)))
                    shard.update(
                        edge.UpdateOperation.upsert_points(
                            [
                                edge.Point(
                                    id=block.point_ids[row],
                                    vector=block.plain_vector(row),
                                    payload=block.payload(row),
                                )
                                for row in rows
                            ]
                        )
                    )
            shard.flush()
        finally:
            shard.close()


EXPORT = ExportFormat(kind="qdrant", file_name=lambda vectors: FOLDER_NAME, write=write)
