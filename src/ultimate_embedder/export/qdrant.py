"""`qdrant/`: a Qdrant Edge shard, which any program with qdrant-edge can open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ultimate_embedder.events import Emit, GraphBuilding
from ultimate_embedder.export.format import Changes, ExportDraft, ExportFormat, ExportSize
from ultimate_embedder.export.points import PointBlock, Points
from ultimate_embedder.files import atomic_folder
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import HnswGraph

if TYPE_CHECKING:
    from ultimate_embedder.chunks import ChunkTable
    from ultimate_embedder.export.draft import ShardDraft
    from ultimate_embedder.export.format import PointBatches

FOLDER_NAME = "qdrant"
# measured with qdrant-edge 0.9: a point takes 48 bytes in the trackers of ids and payloads, and 28 in our record.
# Pages of payloads and of vectors are 32 MB long, but holes where nothing was written: an empty shard takes 70 kB.
POINT_BYTES = 76
EMPTY_BYTES = 70_000
LINKS = 2  # links of a point on the lowest level of the graph, as a multiple of m
LINK_BYTES = 4
SPARSE_POINT_BYTES = 128  # the storage of a sparse vector is in blocks of this size


def write(points: Points, path: Path) -> None:
    """Build the shard in a temporary folder, note what is in it, and move it to `path`."""
    _write(points, path, None, lambda seconds: None)


def write_with_graph(points: Points, path: Path, graph: HnswGraph, emit: Emit) -> None:
    """The same, with a graph for approximate search."""
    event = partial(GraphBuilding, collection=points.collection, kind=EXPORT.kind, points=len(points), graph=graph)
    _write(points, path, graph, lambda seconds: emit(event(seconds=seconds)))


@contextmanager
def begin(collection: str, table: ChunkTable, path: Path, emit: Emit, stop: StopSwitch) -> Iterator[ExportDraft]:
    """Begin the shard with the payloads of all chunks, as long as the block lasts."""
    from ultimate_embedder.export.draft import draft_shard

    with draft_shard(collection, table, path, emit, stop) as draft:
        yield _Begun(draft)


class _Begun:
    """A shard that was begun, if a process for it could be started."""

    def __init__(self, draft: ShardDraft | None) -> None:
        self._draft = draft

    def write(self, points: Points, path: Path) -> None:
        _write(points, path, None, lambda seconds: None, self._draft)

    def written_bytes(self) -> int:
        return self._draft.written_bytes() if self._draft else 0


def _write(
    points: Points,
    path: Path,
    graph: HnswGraph | None,
    tell_graph: Callable[[float], None],
    draft: ShardDraft | None = None,
) -> None:
    # imported here: --help imports this module
    from ultimate_embedder.export.shard import build_shard
    from ultimate_embedder.export.shard_record import PointRecord, write_record

    record = PointRecord([spec.name for spec in points.vectors])

    def note(block: PointBlock) -> None:
        record.add(block.point_ids, {**block.vectors, **block.sparse})

    with atomic_folder(path) as folder:
        sums = draft.complete(points, folder, note) if draft else None
        if sums is None:
            sums = build_shard(points, folder, note, graph, tell_graph)
        write_record(record.written(sums), folder)


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
    plain = size.vector_bytes + size.blocked_bytes + size.rows * POINT_BYTES + EMPTY_BYTES
    plain += size.sparse_bytes + (size.rows * SPARSE_POINT_BYTES if size.sparse_bytes else 0)
    if size.graph is None:
        return plain
    # the points are copied into a segment that has a graph, before the first one is deleted
    return 2 * plain + size.rows * size.graph.m * LINKS * LINK_BYTES


EXPORT = ExportFormat(
    kind="qdrant",
    file_name=lambda vectors: FOLDER_NAME,
    write=write,
    write_with_graph=write_with_graph,
    begin=begin,
    size=_size,
    passing_files=("tracker_journal.dat",),  # what the tracker has already: Edge deletes it on the first load
    find_changes=find_changes,
)
