"""One queue of batches for all workers of a pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ultimate_embedder.batching import Batch, BatchLimits
from ultimate_embedder.execution.windows import Window
from ultimate_embedder.locks import OrderedCondition, Rank

ARRIVAL_WAIT_S = 0.02  # between two looks for a window that has not arrived yet
LONGEST_WAIT_S = 0.5  # then look again whether the run was stopped
END: Literal["end"] = "end"  # of the windows; None among them says that none has arrived yet


@dataclass(frozen=True)
class QueuedBatch:
    """A batch for a worker: the window that it is from, and how many rows it had before memory made it smaller."""

    window: Window
    batch: Batch
    planned_rows: int


class BatchQueue:
    """Hands planned batches to whichever worker asks; the faster one gets more.

    A batch that the worker's device has no room for is handed out in parts. A worker whose device is lost gives back
    what it has taken; so one that finds nothing waits as long as others hold batches.
    """

    def __init__(
        self,
        windows: Iterator[Window | None],
        limits: BatchLimits,
        on_window: Callable[[Window], None],
        may_continue: Callable[[], bool],
    ) -> None:
        self._windows = windows
        self._limits = limits
        self._on_window = on_window
        self._may_continue = may_continue
        self._waiting: deque[QueuedBatch] = deque()
        self._changed = OrderedCondition("batch queue", Rank.BATCH_QUEUE)
        self._taken = 0
        self._exhausted = False
        self._stopped = False

    def take(self, rows_that_fit: Callable[[Batch, int], int], holding: int = 0) -> QueuedBatch | None:
        """The next batch; None when there is nothing left, or nothing wanted.

        Also None when there is nothing now and the caller is `holding` batches that it can finish meanwhile.
        """
        with self._changed:
            while not self._stopped and self._may_continue():
                if self._waiting:
                    return self._hand_out(rows_that_fit)
                if not self._exhausted:
                    if self._fill() or self._exhausted:
                        continue
                    if holding:
                        return None
                    # without the lock: another worker may have a batch to finish meanwhile
                    self._changed.wait(ARRIVAL_WAIT_S)
                elif holding or not self._taken:
                    return None
                else:
                    self._changed.wait(LONGEST_WAIT_S)
            return None

    def done(self) -> None:
        """A batch that was taken is encoded."""
        with self._changed:
            self._taken -= 1
            self._changed.notify_all()

    def give_back(self, batches: Sequence[QueuedBatch]) -> None:
        """Hand batches out again that a worker has taken and cannot finish."""
        with self._changed:
            self._taken -= len(batches)
            self._waiting.extendleft(reversed(batches))
            self._changed.notify_all()

    @property
    def unfinished(self) -> bool:
        """Whether there was more to hand out, and nobody stopped it."""
        return not self._stopped and self._may_continue() and (bool(self._waiting) or not self._exhausted)

    def stop(self) -> None:
        """Hand out nothing more. Takes no lock: a worker whose device hangs may hold it."""
        self._stopped = True

    def _hand_out(self, rows_that_fit: Callable[[Batch, int], int]) -> QueuedBatch:
        queued = self._waiting[0]
        fit = rows_that_fit(queued.batch, queued.planned_rows)  # before it is taken: this may raise
        batch, rest = queued.batch.split(fit, queued.window.texts.lengths)
        self._waiting.popleft()
        if rest is not None:
            self._waiting.appendleft(QueuedBatch(queued.window, rest, queued.planned_rows))
        self._taken += 1
        return QueuedBatch(queued.window, batch, queued.planned_rows)

    def _fill(self) -> bool:
        """Cut the next window into batches; False if none has arrived yet, or there is none left."""
        window = next(self._windows, END)
        if not isinstance(window, Window):
            self._exhausted = window is END
            return False
        self._on_window(window)
        for batch in self._limits.cut(window.texts.lengths, window.row_keys):
            self._waiting.append(QueuedBatch(window, batch, len(batch.rows)))
        return True
