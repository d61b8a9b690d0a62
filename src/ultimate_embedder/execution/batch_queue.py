"""One queue of batches for all workers of a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ultimate_embedder.batching import Batch, BatchCutter
from ultimate_embedder.execution.windows import Window
from ultimate_embedder.locks import OrderedLock, Rank

BATCHES_EACH = 4  # of a window and on each device, at least: so all end together, and lengths are not mixed
LEAST_SHARE_TOKENS = 2048


class BatchQueue:
    """Cuts batches for whichever worker asks, each as large as that worker can take; the faster one gets more."""

    def __init__(
        self,
        windows: Iterator[Window],
        lanes: int,
        workers: int,
        enough_tokens: int,
        on_window: Callable[[Window], None],
        may_continue: Callable[[], bool],
    ) -> None:
        self._windows = windows
        self._lanes = lanes  # devices that a worker splits its batches over
        self._workers = workers
        self._share_tokens = 0
        self._may_continue = may_continue
        self._enough_tokens = enough_tokens
        self._on_window = on_window
        self._window: Window | None = None
        self._cutter: BatchCutter | None = None
        self._lock = OrderedLock("batch queue", Rank.BATCH_QUEUE)
        self._stopped = False

    def take(self, most_rows: Callable[[int], int]) -> tuple[Window, Batch] | None:
        """The next batch and the window it is from; None when there is nothing left, or nothing wanted."""
        with self._lock:
            while not self._stopped and self._may_continue():
                batch = self._cutter.cut(partial(self._fair_rows, most_rows)) if self._cutter else None
                if batch is not None and self._window is not None:
                    return self._window, batch
                self._window = next(self._windows, None)
                if self._window is None:
                    self._stopped = True
                    break
                self._on_window(self._window)
                lengths = self._window.texts.lengths
                parts = self._lanes * self._workers * BATCHES_EACH
                share = max(LEAST_SHARE_TOKENS, int(lengths.sum()) // parts)
                self._share_tokens = share * self._lanes
                self._cutter = BatchCutter(lengths, min(self._enough_tokens, share) * self._lanes)
            return None

    def stop(self) -> None:
        """Hand out nothing more."""
        self._stopped = True

    def _fair_rows(self, most_rows: Callable[[int], int], longest: int) -> int:
        """What a worker can take, but not so much that too little is left for the others."""
        return min(most_rows(longest), max(1, self._share_tokens // longest))
