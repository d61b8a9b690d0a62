"""One queue of batches for all workers of a pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ultimate_embedder.batching import Batch, plan_batches, window_budget
from ultimate_embedder.execution.windows import Window
from ultimate_embedder.locks import OrderedLock, Rank


@dataclass(frozen=True)
class BatchLimits:
    """How large batches may be where memory allows it."""

    budget_tokens: int
    fixed: bool
    """Whether each batch has the whole budget; else a small window is cut into several."""
    most_rows: int | None = None
    avoid_padding: bool = False


@dataclass(frozen=True)
class QueuedBatch:
    """A batch for a worker: the window that it is from, and how many rows it had before memory made it smaller."""

    window: Window
    batch: Batch
    planned_rows: int


class BatchQueue:
    """Hands planned batches to whichever worker asks; the faster one gets more.

    A batch that the worker's device has no room for is handed out in parts.
    """

    def __init__(
        self,
        windows: Iterator[Window],
        limits: BatchLimits,
        on_window: Callable[[Window], None],
        may_continue: Callable[[], bool],
    ) -> None:
        self._windows = windows
        self._limits = limits
        self._on_window = on_window
        self._may_continue = may_continue
        self._waiting: deque[QueuedBatch] = deque()
        self._lock = OrderedLock("batch queue", Rank.BATCH_QUEUE)
        self._stopped = False

    def take(self, rows_that_fit: Callable[[Batch, int], int]) -> QueuedBatch | None:
        """The next batch; None when there is nothing left, or nothing wanted."""
        with self._lock:
            while not self._stopped and self._may_continue():
                if self._waiting:
                    queued = self._waiting.popleft()
                    fit = rows_that_fit(queued.batch, queued.planned_rows)
                    batch, rest = queued.batch.split(fit, queued.window.texts.lengths)
                    if rest is not None:
                        self._waiting.appendleft(QueuedBatch(queued.window, rest, queued.planned_rows))
                    return QueuedBatch(queued.window, batch, queued.planned_rows)
                self._fill()
            return None

    def stop(self) -> None:
        """Hand out nothing more."""
        self._stopped = True

    def _fill(self) -> None:
        window = next(self._windows, None)
        if window is None:
            self._stopped = True
            return
        self._on_window(window)
        lengths, limits = window.texts.lengths, self._limits
        budget = limits.budget_tokens if limits.fixed else window_budget(lengths, limits.budget_tokens)
        for batch in plan_batches(lengths, budget, window.keys, limits.most_rows, avoid_padding=limits.avoid_padding):
            self._waiting.append(QueuedBatch(window, batch, len(batch.rows)))
