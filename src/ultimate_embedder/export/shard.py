"""Write and read Qdrant Edge shards, in a child process that may die without taking the run along."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ultimate_embedder.child import Child, ChildNotStartedError, on_stop, start_child
from ultimate_embedder.edge import BuildShard, End, Failed, GraphBegun, ReadShard, Records, Rows, SparseBytes
from ultimate_embedder.errors import OutputError
from ultimate_embedder.export.format import UnreadableError
from ultimate_embedder.export.points import PointBlock, Points
from ultimate_embedder.files import first_oddity, scratch_copy
from ultimate_embedder.sparse import SparseVectors
from ultimate_embedder.stop import looking
from ultimate_embedder.types import HnswGraph

CHILD = "ultimate_embedder.edge"
NO_SITE = "-S"  # a shorter start: the child is told every folder that we can import from
DISK_WORDS = ("no space left", "os error 28", "quota", "os error 122", "file too large", "os error 27")
WITHOUT_IT = "or leave the shard out with --export npy,parquet"
TELL_S = 15.0
STORED = "vectors that are stored are not computed again"

Watch = Callable[[PointBlock, list[dict[str, Any]]], None]


def build_shard(
    points: Points, folder: Path, watch: Watch, graph: HnswGraph | None, tell_graph: Callable[[float], None]
) -> None:
    """Write all points into a new shard in `folder`; `watch` sees them. Raises `OutputError` if Edge fails.

    `tell_graph` is called with the seconds for which the graph has been built, as long as it is.
    """
    dims = {spec.name: spec.dim for spec in points.vectors if spec.dim is not None}
    sparse = {facts.name: facts.modifier == "idf" for facts in points.sparse}
    try:
        with _start_edge() as child:
            with on_stop(points.stop, lambda reason: child.kill()):
                _send(child, BuildShard(str(folder), dims, graph, sparse), points, watch)
                answer = child.receive()
                if isinstance(answer, GraphBegun):
                    with _telling(tell_graph):
                        answer = child.receive()
            points.stop.check()
            if not isinstance(answer, End):
                problem = _problem(child, answer, folder)
                raise OutputError(f"the Qdrant shard cannot be written to {folder.parent}: {problem}")
    except ChildNotStartedError as error:
        raise OutputError(
            f"the Qdrant shard cannot be written to {folder.parent}: no process can be started for it ({error}). "
            f"End other programs and run the same command again, {WITHOUT_IT}."
        ) from error


def read_shard(path: Path) -> Iterator[Records | End]:
    """Everything in a shard, from a copy, as Edge changes the files of a shard that it loads.

    Raises `UnreadableError` if it is damaged, `OutputError` if it cannot be looked at here.
    """
    if odd := first_oddity(path):
        raise UnreadableError(f"{odd.relative_to(path)} is a link, a pipe or a device")
    with scratch_copy(path) as copy:
        try:
            with _start_edge() as child:
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


def _start_edge() -> AbstractContextManager[Child]:
    return start_child(CHILD, interpreter_options=[NO_SITE], capture_errors=True, kill_on_error=True)


def _send(child: Child, work: BuildShard, points: Points, watch: Watch) -> None:
    """Send all points, or as many as the child takes before it ends."""
    if not child.send(work):
        return
    for block in points.blocks():
        payloads = [block.payload(row) for row in range(len(block))]
        vectors = {name: each.astype("f4", copy=False).tobytes() for name, each in block.vectors.items()}
        sparse = {name: _packed(each) for name, each in block.sparse.items()}
        if not child.send(Rows(block.point_ids, payloads, vectors, sparse)):
            return
        watch(block, payloads)
    child.send(End())


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
