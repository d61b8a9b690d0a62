"""Store vectors on a separate thread, so that no device waits for the disk."""

from __future__ import annotations

import queue
import threading
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from ultimate_embedder.execution.executor import VectorSink

MOST_WAITING = 8  # batches; then whoever computes waits for the disk after all, and memory stays bounded


class _Rows(NamedTuple):
    keys: np.ndarray
    vectors: Any
    truncated: np.ndarray


class VectorWriter:
    """Takes vectors from any thread. A context manager: when it ends, everything is on disk, or its error is raised."""

    def __init__(self, sink: VectorSink) -> None:
        self._sink = sink
        self._waiting: queue.Queue[_Rows | None] = queue.Queue(MOST_WAITING)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, name="vector-writer", daemon=True)

    def __enter__(self) -> VectorWriter:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._waiting.put(None)
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def append(self, keys: np.ndarray, vectors: Any, overlong: np.ndarray) -> None:
        """Hand over the vectors of a batch; raises what went wrong with an earlier one."""
        if self._error is not None:
            raise self._error
        self._waiting.put(_Rows(keys, vectors, overlong))

    def _write(self) -> None:
        while (rows := self._waiting.get()) is not None:
            if self._error is None:
                try:
                    self._sink.append(*rows)
                except BaseException as error:  # noqa: BLE001 - raised again where the vectors come from
                    self._error = error
        if self._error is None:
            try:
                self._sink.seal()
            except BaseException as error:  # noqa: BLE001 - as above
                self._error = error
