"""Write and read Qdrant Edge shards, in child processes that may die without taking the run along."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

from ultimate_embedder.child import Child, ChildNotStartedError, on_stop, start_child
from ultimate_embedder.edge import (
    BuildShard,
    Built,
    CountPoints,
    End,
    Failed,
    GraphBegun,
    ReadShard,
    Records,
    Rows,
    SparseBytes,
)
from ultimate_embedder.errors import OutputError
from ultimate_embedder.export.format import UnreadableError
from ultimate_embedder.export.points import PointBlock, Points
from ultimate_embedder.files import first_oddity, scratch_copy
from ultimate_embedder.machine import usable_cores
from ultimate_embedder.payload import SUM_BYTES
from ultimate_embedder.sparse import SparseVectors
from ultimate_embedder.stop import StopSwitch, looking
from ultimate_embedder.types import HnswGraph

CHILD = "ultimate_embedder.edge"
NO_SITE = "-S"  # a shorter start: the child is told every folder that we can import from
DISK_WORDS = ("no space left", "os error 28", "quota", "os error 122", "file too large", "os error 27")
WITHOUT_IT = "or leave the shard out with --export npy,parquet"
TELL_S = 15.0
STORED = "vectors that are stored are not computed again"

# the files of a shard are Edge's own business: they are put together only where that was tried
JOINED_VERSIONS = ("0.9.",)
SEGMENTS = "segments"
CONFIG = "edge_config.json"
PART_POINTS = 10_000  # fewer are written sooner than a second process has started
MOST_PARTS = 4

Watch = Callable[[PointBlock], None]


def build_shard(
    points: Points, folder: Path, watch: Watch, graph: HnswGraph | None, tell_graph: Callable[[float], None]
) -> bytes:
    """Write all points into a new shard in `folder`; gives the checksums of their payloads, in their order.

    `watch` sees the points. `tell_graph` is called with the seconds for which the graph has been built, as long as it
    is. Raises `OutputError` if Edge fails.
    """
    dims, sparse = vector_names(points)
    count = 1 if graph else part_count(len(points))
    folders = [folder / f"part-{number}" for number in range(count)] if count > 1 else [folder]
    try:
        with ExitStack() as stack:
            parts = [Part(stack.enter_context(start_edge()), each, folder, points.stop) for each in folders]
            with on_stop(points.stop, partial(_kill, parts)):
                for part in parts:
                    part.send(BuildShard(str(part.folder), points.collection, dims, graph, sparse, count))
                owners = _send(parts, points, watch)
                sums = [part.finish(tell_graph) for part in parts]
                if count > 1:
                    _join(parts, folder, len(points))
            points.stop.check()
    except ChildNotStartedError as error:
        raise OutputError(
            f"the Qdrant shard cannot be written to {folder.parent}: no process can be started for it ({error}). "
            f"End other programs and run the same command again, {WITHOUT_IT}."
        ) from error
    return _in_order(sums, owners)


def vector_names(points: Points) -> tuple[dict[str, int], dict[str, bool]]:
    """The vectors of a shard of these points: dims of the dense ones, and whether sparse ones are weighted by IDF."""
    dims = {spec.name: spec.dim for spec in points.vectors if spec.dim is not None}
    return dims, {facts.name: facts.modifier == "idf" for facts in points.sparse}


def part_count(points: int) -> int:
    """How many processes write a shard of so many points: most of the time is Edge converting payloads, on one core."""
    if not edge_version().startswith(JOINED_VERSIONS):
        return 1
    return max(1, min(usable_cores(), MOST_PARTS, points // PART_POINTS))


def edge_version() -> str:
    """The version of qdrant-edge."""
    return version("qdrant-edge-py")


class Part:
    """A process that writes some of the points, into a shard of its own."""

    def __init__(self, child: Child, folder: Path, whole: Path, stop: StopSwitch) -> None:
        self.child, self.folder = child, folder
        self._whole, self._stop = whole, stop

    def send(self, message: Any) -> None:
        """Send a message; raises if the process has ended."""
        if not self.child.send(message):
            raise self.failure(self.child.receive())

    def finish(self, tell_graph: Callable[[float], None]) -> bytes:
        """Wait until all points are written; gives the checksums of their payloads."""
        answer = self.child.receive()
        if isinstance(answer, GraphBegun):
            with _telling(tell_graph):
                answer = self.child.receive()
        if not isinstance(answer, Built):
            raise self.failure(answer)
        return answer.payload_sums

    def failure(self, answer: Any) -> Exception:
        """What has gone wrong, unless the run was stopped, which kills the process: that is raised."""
        self._stop.check()
        problem = _problem(self.child, answer, self._whole)
        return OutputError(f"the Qdrant shard cannot be written to {self._whole.parent}: {problem}")


def _kill(parts: Sequence[Part], reason: str) -> None:
    for part in parts:
        part.child.kill()


def _send(parts: Sequence[Part], points: Points, watch: Watch) -> list[tuple[int, int]]:
    """Send each block of points to the next of the processes; gives who got each block, and how long it is."""
    owners = []
    for number, block in enumerate(points.blocks()):
        owner = number % len(parts)
        columns = (block.point_ids, block.ids, block.files, block.texts, block.records)
        parts[owner].send(Rows(*columns, *packed_vectors(block)))
        watch(block)
        owners.append((owner, len(block)))
    for part in parts:
        part.send(End())
    return owners


def _join(parts: Sequence[Part], folder: Path, points: int) -> None:
    """Make one shard of those of all parts: a segment is complete in itself, and a shard has any number of them."""
    (folder / SEGMENTS).mkdir()
    for part in parts:
        for segment in sorted((part.folder / SEGMENTS).iterdir()):
            segment.rename(folder / SEGMENTS / segment.name)
    (parts[0].folder / CONFIG).rename(folder / CONFIG)
    for part in parts:
        shutil.rmtree(part.folder)
    first = parts[0]
    first.send(CountPoints(str(folder)))
    answer = first.child.receive()
    if not isinstance(answer, End):
        raise first.failure(answer)
    if answer.points != points:
        raise first.failure(Failed(f"the shard has {answer.points} of {points} points"))


def _in_order(sums: Sequence[bytes], owners: Sequence[tuple[int, int]]) -> bytes:
    """The checksums of all payloads in the order of the points, of those of each part."""
    files = [BytesIO(each) for each in sums]
    return b"".join(files[owner].read(rows * SUM_BYTES) for owner, rows in owners)


def read_shard(path: Path) -> Iterator[Records | End]:
    """Everything in a shard, from a copy, as Edge changes the files of a shard that it loads.

    Raises `UnreadableError` if it is damaged, `OutputError` if it cannot be looked at here.
    """
    if odd := first_oddity(path):
        raise UnreadableError(f"{odd.relative_to(path)} is a link, a pipe or a device")
    with scratch_copy(path) as copy:
        try:
            with start_edge() as child:
                child.send(ReadShard(str(copy)))
                while isinstance(message := child.receive(), Records):
                    yield message
                if not isinstance(message, End):
                    raise _unreadable(child, message)
                yield message
        except ChildNotStartedError as error:
            raise OutputError(f"no process can be started to read it ({error})") from error


@contextmanager
def _telling(tell: Callable[[float], None]) -> Iterator[None]:
    """Tell again and again for how long the block has taken: Edge itself says nothing of it."""
    started = time.monotonic()

    def again() -> bool:
        tell(time.monotonic() - started)
        return True

    again()
    with looking(again, TELL_S, "graph-progress"):
        yield


def start_edge() -> AbstractContextManager[Child]:
    """A process for Edge."""
    return start_child(CHILD, interpreter_options=[NO_SITE], capture_errors=True, kill_on_error=True)


def packed_vectors(block: PointBlock) -> tuple[dict[str, bytes], dict[str, SparseBytes]]:
    """The vectors of some points by name, as they cross the pipe: dense ones, and sparse ones."""
    dense = {name: each.astype("f4", copy=False).tobytes() for name, each in block.vectors.items()}
    return dense, {name: _packed(each) for name, each in block.sparse.items()}


def _packed(vectors: SparseVectors) -> SparseBytes:
    return SparseBytes(
        vectors.indptr.astype("i8", copy=False).tobytes(),
        vectors.indices.astype("u4", copy=False).tobytes(),
        vectors.values.astype("f4", copy=False).tobytes(),
    )


def _problem(child: Child, answer: Any, folder: Path) -> str:
    """What has gone wrong, and what to do about it."""
    free_mb = shutil.disk_usage(folder).free / 1e6  # before what was written is removed
    code = child.wait()
    said = answer.reason if isinstance(answer, Failed) else child.last_words
    if code == -_signal("SIGBUS") or any(word in said.lower() for word in DISK_WORDS):
        why = "its process was ended by SIGBUS" if code == -_signal("SIGBUS") else said.splitlines()[0]
        return (
            f"the disk is full, over its quota or failing ({why}; {free_mb:.1f} MB were free). Make room and run the "
            f"same command again: {STORED}; {WITHOUT_IT}."
        )
    if code == -_signal("SIGKILL"):
        return (
            "its process was killed (SIGKILL), as a system does that is out of memory. End other programs and run the "
            f"same command again: {STORED}; {WITHOUT_IT}."
        )
    if isinstance(answer, Failed):
        return f"{' '.join(said.split())}. Run the same command again, {WITHOUT_IT}."
    ended = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    last = f" ({said.splitlines()[-1].strip()})" if said else ""
    return f"its process {ended}{last}. Run the same command again, {WITHOUT_IT}."


def _unreadable(child: Child, answer: Any) -> OutputError:
    code = child.wait()
    if code == -_signal("SIGKILL"):
        return OutputError("the process that reads it was killed (SIGKILL), as a system does that is out of memory")
    why = answer.reason if isinstance(answer, Failed) else f"its process was ended by {_signal_name(-code)}"
    return UnreadableError(f"Qdrant Edge cannot read it ({' '.join(why.split())})")


def _signal(name: str) -> int:
    """Its number; one that ends no process where the platform does not have it."""
    return int(getattr(signal, name, 1 << 16))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
