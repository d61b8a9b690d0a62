"""Windows: runs of texts that are tokenised together, so that memory stays bounded, and cut into batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ultimate_embedder.batching import Batch, BatchCutter, points_to_predict
from ultimate_embedder.chunks import ChunkTable
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import Encoder, TokenizedTexts
from ultimate_embedder.vectors import TokenStore

FIRST_WINDOW_TEXTS, WINDOW_TEXTS = 256, 4096  # the devices wait for the first; each may be four times the last
BATCHES_EACH = 4  # of a window and on each device, at least: so all end together, and lengths are not mixed
LEAST_SHARE_TOKENS = 2048
WINDOW_CHARACTERS = 16 << 20  # long texts close a window early


@dataclass(frozen=True)
class Window:
    """Tokenised texts with their keys."""

    keys: np.ndarray
    texts: TokenizedTexts
    seconds: float


class BatchFeed:
    """Hands out batches to whichever worker asks, each as large as that worker can take; the faster one gets more."""

    def __init__(
        self,
        windows: Iterator[Window],
        lanes: int,
        workers: int,
        enough_tokens: int,
        on_window: Callable[[Window], None],
        may_go_on: Callable[[], bool],
    ) -> None:
        self._windows = windows
        self._lanes = lanes  # devices that a worker splits its batches over
        self._workers = workers
        self._share_tokens = 0
        self._may_go_on = may_go_on
        self._enough_tokens = enough_tokens
        self._on_window = on_window
        self._window: Window | None = None
        self._cutter: BatchCutter | None = None
        self._lock = OrderedLock("feed", Rank.FEED)
        self._stopped = False

    def take(self, most_rows: Callable[[int], int]) -> tuple[Window, Batch] | None:
        """The next batch and the window it is from; None when there is nothing left, or nothing wanted."""
        with self._lock:
            while not self._stopped and self._may_go_on():
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

    def _fair_rows(self, most_rows: Callable[[int], int], longest: int) -> int:
        """What a worker can take, but not so much that too little is left for the others."""
        return min(most_rows(longest), max(1, self._share_tokens // longest))

    def stop(self) -> None:
        """Hand out nothing more."""
        self._stopped = True


def foreseen(windows: Iterable[Window], encoder: Encoder) -> Iterator[Window]:
    """Predict the memory for the lengths of each window while it is being worked on: nobody has to wait for that."""
    for window in windows:
        yield window
        for rows, length in points_to_predict(np.unique(window.texts.lengths).tolist()):
            encoder.peak_bytes(rows, length)
            time.sleep(0.001)  # a worker may be waiting for a prediction: the next turn is its


def tokenized_windows(
    table: ChunkTable, wanted: np.ndarray, encoder: Encoder, shared: TokenStore | None = None
) -> Iterator[Window]:
    """Yield the `wanted` rows of the table (a mask), window by window; what `shared` has is not tokenised again."""
    for rows, texts in _runs(table, wanted):
        started = time.perf_counter()
        keys = table.keys[rows]
        tokenized = encoder.tokenize(texts) if shared is None else _tokenize_missing(keys, texts, encoder, shared)
        yield Window(keys, tokenized, time.perf_counter() - started)


def _tokenize_missing(keys: np.ndarray, texts: list[str], encoder: Encoder, shared: TokenStore) -> TokenizedTexts:
    missing = np.flatnonzero(~shared.holds(keys))
    if len(missing):
        fresh = encoder.tokenize([texts[row] for row in missing])
        shared.append(keys[missing], fresh.rows, fresh.truncated)
    rows, truncated = shared.read(keys)
    return TokenizedTexts(rows, np.array([len(row) for row in rows]), truncated)


def _runs(table: ChunkTable, wanted: np.ndarray) -> Iterator[tuple[list[int], list[str]]]:
    rows: list[int] = []
    texts: list[str] = []
    characters, enough = 0, FIRST_WINDOW_TEXTS
    for block in table.blocks(wanted):
        for row, text in enumerate(block.texts, block.start):
            if not wanted[row]:
                continue
            rows.append(row)
            texts.append(text)
            characters += len(text)
            if len(rows) == enough or characters >= WINDOW_CHARACTERS:
                yield rows, texts
                rows, texts, characters = [], [], 0
                enough = min(WINDOW_TEXTS, 4 * enough)
    if rows:
        yield rows, texts
