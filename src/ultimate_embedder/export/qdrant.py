"""`qdrant/`: a Qdrant Edge shard, which any program with qdrant-edge can open."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ultimate_embedder.export.format import Changes, ExportFormat, ExportSize
from ultimate_embedder.export.points import Points
from ultimate_embedder.files import atomic_folder

if TYPE_CHECKING:
    from ultimate_embedder.export.format import PointBatches

FOLDER_NAME = "qdrant"
# measured with qdrant-edge 0.9: a point takes 48 bytes in the trackers of ids and payloads, and 28 in our record.
# Pages of payloads and of vectors are 32 MB long, but holes where nothing was written: an empty shard takes 70 kB.
POINT_BYTES = 76
EMPTY_BYTES = 70_000


def write(points: Points, path: Path) -> None:
    """Build the shard in a temporary folder, note what is in it, and move it to `path`."""
    # imported here: --help imports this module
    from ultimate_embedder.export.shard import build_shard
    from ultimate_embedder.export.shard_record import PointRecord, write_record

    record = PointRecord([spec.name for spec in points.vectors])
    with atomic_folder(path) as folder:
        build_shard(points, folder, lambda block, payloads: record.add(block.point_ids, payloads, block.vectors))
        write_record(record.written(), folder)


def find_changes(path: Path, points: PointBatches | None) -> Changes:
    """How a shard whose bytes have changed differs from what was written; raises `UnreadableError` if it is damaged."""
    from ultimate_embedder.export import shard_record

    written = shard_record.read_record(path)
    if written is None and points is not None:  # an earlier version wrote the shard
        written = shard_record.record_of(points)
    if written is None:
        return Changes("how is not known, as an earlier version wrote it", ours_intact=False)
    found = shard_record.find_changes(path, written)
    return Changes(str(found), found.ours_intact)


def _size(size: ExportSize) -> int:
    return size.vector_bytes + size.blocked_bytes + size.rows * POINT_BYTES + EMPTY_BYTES


EXPORT = ExportFormat(
    kind="qdrant",
    file_name=lambda vectors: FOLDER_NAME,
    write=write,
    size=_size,
    passing_files=("tracker_journal.dat",),  # what the tracker has already: Edge deletes it on the first load
    find_changes=find_changes,
)
