"""`python -m ultimate_embedder.edge`: Qdrant Edge in a process of its own, which writes a shard, or reads one.

Edge maps its files into memory: on a full disk the process that writes to them is killed by SIGBUS, without a word.
Imports as little as possible, so that it starts quickly; `export/shard.py` is its counterpart.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ultimate_embedder.messages import claim_pipes, leave, read_message, write_message
from ultimate_embedder.payload import parse_record, payload, payload_sum

if TYPE_CHECKING:  # its many dataclasses take a third of the start
    from ultimate_embedder.types import HnswGraph

UNNAMED = ""  # as in `types`
UPSERT_POINTS = 256
READ_POINTS = 1000
EXACT_SEARCH = 10**9  # kB of vectors before a graph is built: none is, as exact search is fast at this size
ALWAYS_INDEXED = 1
PLACEHOLDER = "vectors-follow"
FULL_SCAN_KB = 10_000  # Qdrant's default: fewer vectors than this are searched faster without the graph

_Kind = TypeVar("_Kind", "Rows", "VectorRows")


@dataclass(frozen=True)
class BuildShard:
    """Build a shard in an empty folder, of the rows that follow, up to an `End`."""

    folder: str
    collection: str
    """For the payloads."""
    dims: dict[str, int]
    """By name of the vector."""
    graph: HnswGraph | None = None
    """The search graph to build; None for exact search."""
    sparse: dict[str, bool] = field(default_factory=dict)
    """Names of sparse vectors, and whether searches weigh words by how rare they are (IDF)."""
    segments: int = 1
    """How many the shard has when it is complete: others may be built by other processes."""


@dataclass(frozen=True)
class DraftShard:
    """Build a shard in an empty folder of payloads first: rows without vectors follow, up to an `End`.

    Then come `AddVectors`, the vectors of the points, and another `End`.
    """

    folder: str
    collection: str


@dataclass(frozen=True)
class AddVectors:
    """The vectors that points of a drafted shard will have, named as in `BuildShard`, and the points that have none."""

    dims: dict[str, int]
    sparse: dict[str, bool]
    removed: list[str]
    """Ids of points to be deleted."""


@dataclass(frozen=True)
class ReadShard:
    """Read a shard, whose files are changed by it: answers with records, and an `End`."""

    folder: str


@dataclass(frozen=True)
class CountPoints:
    """Load a shard and count its points: answers with an `End`."""

    folder: str


@dataclass(frozen=True)
class SparseBytes:
    """Sparse vectors of some points, one after the other: where each begins (int64), indices (uint32), values."""

    indptr: bytes
    indices: bytes
    values: bytes


@dataclass(frozen=True)
class Rows:
    """Points to write, by what their payloads are made of: strings cross the pipe at a tenth of the cost of objects."""

    ids: list[str]
    chunk_ids: list[str]
    files: list[str]
    texts: list[str]
    records: list[str]
    """JSON."""
    vectors: dict[str, bytes]
    """By name: the float32 of all points, one after the other."""
    sparse: dict[str, SparseBytes] = field(default_factory=dict)


@dataclass(frozen=True)
class VectorRows:
    """The vectors of points whose payloads are written, as in `Rows`."""

    ids: list[str]
    vectors: dict[str, bytes]
    sparse: dict[str, SparseBytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Records:
    """Points that were read."""

    ids: list[str]
    payloads: list[Any]
    vectors: list[dict[str, bytes]]
    """Of each point, by name: float32. Points that others have added need not have all of them."""
    sparse: list[dict[str, tuple[bytes, bytes]]] = field(default_factory=list)
    """Of each point, by name: indices (uint32) and values."""


@dataclass(frozen=True)
class GraphBegun:
    """All points are written, and the graph is being built: nothing is heard before the `End`."""

    points: int


@dataclass(frozen=True)
class Built:
    """All points are in the shard, which is closed."""

    points: int
    payload_sums: bytes
    """The checksum of each payload, in the order in which they came."""


@dataclass(frozen=True)
class End:
    """Everything was sent, or done."""

    points: int = 0
    indexes: tuple[str, ...] = ()
    """Fields with a payload index."""


@dataclass(frozen=True)
class Failed:
    """What Edge says is wrong."""

    reason: str


def main() -> int:
    """Do what the other process asks for; gives the exit code."""
    source, channel = claim_pipes()
    gc.disable()  # nothing here is in cycles, and there are many objects to look at
    try:
        while (work := read_message(source)) is not None:
            match work:
                case BuildShard():
                    write_message(channel, _build(work, source, channel))
                case DraftShard():
                    write_message(channel, _build_from_draft(work, source))
                case CountPoints():
                    write_message(channel, End(_count(work)))
                case ReadShard():
                    for message in _read(work):
                        write_message(channel, message)
    except (BrokenPipeError, EOFError):  # the other process is gone
        return 1
    except BaseException as error:  # noqa: BLE001 - Edge's panics are no Exception; the other process puts it into words
        write_message(channel, Failed(f"{error}" or type(error).__name__))
        return 1
    return 0


def _build(work: BuildShard, source: int, channel: int) -> Built:
    import qdrant_edge as edge

    graph = work.graph
    params = {name: edge.EdgeVectorParams(size=dim, distance=edge.Distance.Cosine) for name, dim in work.dims.items()}
    sparse = {name: edge.EdgeSparseVectorParams(modifier=_modifier(idf)) for name, idf in work.sparse.items()}
    shard = _create(work.folder, params.get(UNNAMED, params), sparse, graph, work.segments)
    points, sums = _upsert(shard, source, work.collection, work.dims)
    shard.flush()
    if graph and points:
        write_message(channel, GraphBegun(points))
        shard.optimize()
        shard.flush()
    _close_counted(shard, points)
    return Built(points, sums)


def _build_from_draft(work: DraftShard, source: int) -> Built:
    import qdrant_edge as edge

    # a shard has at least one vector: this one is there until it is known which ones there will be
    shard = _create(work.folder, None, {PLACEHOLDER: edge.EdgeSparseVectorParams()})
    points, sums = _upsert(shard, source, work.collection, {})
    found = read_message(source)
    if found is None:
        raise EOFError("the process that sends the vectors has ended")
    change = edge.UpdateOperation
    for name, dim in found.dims.items():
        shard.update(change.create_dense_vector(name, dim, edge.Distance.Cosine))
    for name, idf in found.sparse.items():
        shard.update(change.create_sparse_vector(name, _modifier(idf)))
    shard.update(change.delete_vector_name(PLACEHOLDER))
    if found.removed:
        shard.update(change.delete_points(found.removed))
    for rows in _received(source, VectorRows):
        made = map(edge.PointVectors, rows.ids, _vectors(rows, found.dims, edge.SparseVector))
        for part in _parts(made):
            shard.update(change.update_vectors(part))
    shard.flush()
    points -= len(found.removed)
    _close_counted(shard, points)
    return Built(points, sums)


def _create(folder: str, vectors: Any, sparse: Any, graph: HnswGraph | None = None, segments: int = 1) -> Any:
    import qdrant_edge as edge

    config = edge.EdgeConfig(
        vectors=vectors,
        sparse_vectors=sparse,
        hnsw_config=edge.HnswIndexConfig(graph.m, graph.ef_construct, FULL_SCAN_KB) if graph else None,
        optimizers=edge.EdgeOptimizersConfig(
            indexing_threshold=ALWAYS_INDEXED if graph else EXACT_SEARCH,
            # else those of several processes would be merged by the first who optimises the shard
            default_segment_number=segments if graph or segments > 1 else None,
        ),
        payload_memory=edge.Memory.Cold,  # the default; Edge would write it into the configuration on the first load
        wal_enabled=False,  # the folder is renamed when complete; a log would only take space
    )
    return edge.EdgeShard.create(folder, config)


def _modifier(idf: bool) -> Any:
    import qdrant_edge as edge

    return edge.Modifier.Idf if idf else None


def _upsert(shard: Any, source: int, collection: str, dims: dict[str, int]) -> tuple[int, bytes]:
    """Write the rows that follow; gives how many there were, and the checksums of their payloads."""
    import qdrant_edge as edge

    points, sums = 0, []
    for rows in _received(source, Rows):
        payloads = _payloads(rows, collection)
        sums.append(b"".join(map(payload_sum, payloads)))
        made = map(edge.Point, rows.ids, _vectors(rows, dims, edge.SparseVector), payloads)
        for part in _parts(made):
            shard.update(edge.UpdateOperation.upsert_points(part))
        points += len(rows.ids)
    return points, b"".join(sums)


def _parts(made: Iterator[Any]) -> Iterator[list[Any]]:
    """As many at a time as one update has."""
    while part := list(itertools.islice(made, UPSERT_POINTS)):
        yield part


def _close_counted(shard: Any, points: int) -> None:
    """Close the shard, which must have so many points."""
    import qdrant_edge as edge

    counted = shard.count(edge.CountRequest(exact=True))
    shard.close()
    if counted != points:
        raise ValueError(f"the shard has {counted} of {points} points")


def _count(work: CountPoints) -> int:
    import qdrant_edge as edge

    shard = edge.EdgeShard.load(work.folder)
    counted = shard.count(edge.CountRequest(exact=True))
    shard.close()
    return int(counted)


def _payloads(rows: Rows, collection: str) -> list[dict[str, Any]]:
    columns = zip(rows.chunk_ids, rows.files, rows.texts, rows.records, strict=True)
    return [payload(chunk_id, collection, file, text, parse_record(record)) for chunk_id, file, text, record in columns]


def _received(source: int, kind: type[_Kind]) -> Iterator[_Kind]:
    while isinstance(message := read_message(source), kind):
        yield message
    if message is None:
        raise EOFError("the process that sends the points has ended")


def _vectors(
    rows: Rows | VectorRows, dims: dict[str, int], make_sparse: Callable[[list[int], list[float]], Any]
) -> Iterator[Any]:
    """For each point its vector, or its vectors by name; Edge takes views of float32, which cost less than lists."""
    numbers = {name: memoryview(rows.vectors[name]).cast("f") for name in dims}
    sparse = {
        name: (_cast(each.indptr, "q"), _cast(each.indices, "I"), _cast(each.values, "f"))
        for name, each in rows.sparse.items()
    }
    for row in range(len(rows.ids)):
        by_name: dict[str, Any] = {name: numbers[name][row * dim : (row + 1) * dim] for name, dim in dims.items()}
        for name, (indptr, indices, values) in sparse.items():
            part = slice(indptr[row], indptr[row + 1])
            by_name[name] = make_sparse(indices[part].tolist(), values[part].tolist())
        yield by_name[UNNAMED] if list(by_name) == [UNNAMED] else by_name


def _cast(content: bytes, letter: str) -> Any:
    return memoryview(content).cast(letter)  # type: ignore[call-overload]


def _read(work: ReadShard) -> Iterator[Records | End]:
    import qdrant_edge as edge

    shard = edge.EdgeShard.load(work.folder)
    points, offset = 0, None
    while True:
        request = edge.ScrollRequest(limit=READ_POINTS, offset=offset, with_payload=True, with_vector=True)
        records, offset = shard.scroll(request)
        yield _as_records(records)
        points += len(records)
        if offset is None:
            break
    indexes = tuple(sorted(shard.info().payload_schema))
    shard.close()
    yield End(points, indexes)


def _as_records(records: list[Any]) -> Records:
    from array import array

    by_name = [each.vector if isinstance(each.vector, dict) else {UNNAMED: each.vector} for each in records]
    return Records(
        ids=[str(each.id) for each in records],
        payloads=[each.payload or {} for each in records],
        vectors=[
            {name: array("f", vector).tobytes() for name, vector in vectors.items() if isinstance(vector, list)}
            for vectors in by_name
        ],
        sparse=[
            {
                name: (array("I", vector.indices).tobytes(), array("f", vector.values).tobytes())
                for name, vector in vectors.items()
                if hasattr(vector, "indices")
            }
            for vectors in by_name
        ],
    )


if __name__ == "__main__":
    from ultimate_embedder import edge as this  # messages are pickled by the name of their module, not as __main__

    leave(this.main())
