"""A Qdrant shard that is begun while texts are encoded: payloads first, and the vectors when they are there.

Edge takes a hundred microseconds to convert a payload, on one core, and a fifth of that for everything else. So a shard
of many points is begun by a process of its own as soon as the chunks are read, and only vectors are written afterwards.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ultimate_embedder.child import ChildNotStartedError, on_stop
from ultimate_embedder.chunks import ChunkTable
from ultimate_embedder.edge import AddVectors, DraftShard, End, Rows, VectorRows
from ultimate_embedder.events import Emit, Warned
from ultimate_embedder.export.points import Points, point_ids
from ultimate_embedder.export.shard import Part, Watch, packed_vectors, start_edge, vector_names
from ultimate_embedder.files import disk_bytes, temporary_path
from ultimate_embedder.payload import SUM_BYTES
from ultimate_embedder.stop import StopSwitch

MOST_LEFT = 0.5  # of the payloads: several processes write the whole shard sooner than one writes more than this
POLL_S = 0.2


class ShardDraft:
    """The shard of a collection, to which a thread sends the payloads of all chunks."""

    def __init__(self, collection: str, table: ChunkTable, part: Part, emit: Emit) -> None:
        self._collection, self._table, self._part, self._emit = collection, table, part, emit
        self._sent = 0
        self._problem: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="shard-draft", daemon=True)

    def start(self) -> None:
        """Begin to send payloads."""
        self._thread.start()

    def written_bytes(self) -> int:
        """What it takes on the disk so far."""
        return disk_bytes(self._part.folder)

    def complete(self, points: Points, folder: Path, watch: Watch) -> bytes | None:
        """Write the vectors, and move the shard into an empty folder; gives the checksums of the payloads.

        None if it is of no use, as it failed or is not far enough. `watch` sees the points.
        """
        if self._thread.is_alive() and self._sent < len(self._table) * (1 - MOST_LEFT):
            self.discard()
        while self._thread.is_alive():
            points.stop.check()
            self._thread.join(POLL_S)
        if self._problem is not None:
            message = f"the Qdrant shard is written anew: what was begun while texts were encoded {self._problem}"
            self._emit(Warned(collection=self._collection, message=message))
        if self._ended.is_set():
            return None
        with on_stop(points.stop, lambda reason: self._part.child.kill()):
            self._send_vectors(points, watch)
            sums = self._part.finish(lambda seconds: None)
        for each in self._part.folder.iterdir():
            each.rename(folder / each.name)
        return bytes(np.frombuffer(sums, np.uint8).reshape(-1, SUM_BYTES)[points.kept].tobytes())

    def discard(self) -> None:
        """End the process and delete what it has written."""
        self._ended.set()
        self._part.child.kill()
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join()
        shutil.rmtree(self._part.folder, ignore_errors=True)

    def _feed(self) -> None:
        try:
            self._part.send(DraftShard(str(self._part.folder), self._collection))
            for rows in self._table.blocks():
                ids = point_ids(self._collection, rows.ids)
                self._part.send(Rows(ids, rows.ids, rows.files, rows.texts, rows.records, {}))
                self._sent += len(ids)
            self._part.send(End())
        except Exception as error:  # noqa: BLE001 - whatever it is, the shard can be written later
            if not self._ended.is_set():
                self._problem = f"has failed ({error})"
                self.discard()  # now: vectors may need the room

    def _send_vectors(self, points: Points, watch: Watch) -> None:
        self._part.send(AddVectors(*vector_names(points), points.removed_point_ids()))
        for block in points.blocks():
            self._part.send(VectorRows(block.point_ids, *packed_vectors(block)))
            watch(block)
        self._part.send(End())


@contextlib.contextmanager
def draft_shard(
    collection: str, table: ChunkTable, path: Path, emit: Emit, stop: StopSwitch
) -> Iterator[ShardDraft | None]:
    """Begin the shard that will be at `path`, until the block ends; None if no process can be started."""
    with ExitStack() as stack:
        try:
            child = stack.enter_context(start_edge())
        except ChildNotStartedError:  # it may be possible later
            yield None
            return
        folder = temporary_path(path)
        folder.mkdir(parents=True)
        draft = ShardDraft(collection, table, Part(child, folder, folder, stop), emit)
        stack.callback(draft.discard)
        draft.start()
        yield draft
