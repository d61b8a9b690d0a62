"""Windows: texts that are tokenised together, so that memory stays bounded, and cut into batches together."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.batching import points_to_predict
from ultimate_embedder.chunks import TextRows
from ultimate_embedder.models import Encoder, SegmentCutter, TokenizedTexts
from ultimate_embedder.planning import WINDOW_ROWS, Rows
from ultimate_embedder.types import Capability, PassIdentity
from ultimate_embedder.vectors import TokenStore

FIRST_WINDOWS = (256, 1024)  # rows at which the first windows end: the devices wait for the first of them
WINDOW_CHARACTERS = 16 << 20  # long texts close a window early


@dataclass(frozen=True)
class Window:
    """Tokenised texts with their keys."""

    keys: np.ndarray
    """Of each text."""
    texts: TokenizedTexts
    seconds: float

    @property
    def row_keys(self) -> np.ndarray:
        """Of each row: the key of the text that it is, or is a segment of."""
        segments = self.texts.segments
        return self.keys if segments is None else self.keys[segments.text_of_row]


class TableTexts:
    """The texts of a table that need a vector: a text source."""

    def __init__(self, table: TextRows, wanted: np.ndarray) -> None:
        """`wanted` is a mask of rows."""
        self._table = table
        self._wanted = wanted

    def count(self, rows: Rows) -> int:
        """How many of these rows are wanted."""
        return int(self._wanted[rows.start : rows.stop].sum())

    def read(self, rows: Rows) -> Iterator[tuple[np.ndarray, list[str]]]:
        """Yield keys and texts of the wanted ones, a window at a time.

        A window ends at a row of the table that depends on nothing else, so that windows are the same however the
        rows are divided into turns, as long as these end where windows do.
        """
        wanted = np.zeros_like(self._wanted)
        wanted[rows.start : rows.stop] = self._wanted[rows.start : rows.stop]
        numbers: list[int] = []
        texts: list[str] = []
        characters, end = 0, _window_end(rows.start)
        for block in self._table.blocks(wanted):
            for row, text in enumerate(block.texts, block.start):
                if numbers and (row >= end or characters >= WINDOW_CHARACTERS):
                    yield self._table.keys[numbers], texts
                    numbers, texts, characters = [], [], 0
                if not wanted[row]:
                    continue
                end = _window_end(row)
                numbers.append(row)
                texts.append(text)
                characters += len(text)
        if numbers:
            yield self._table.keys[numbers], texts


def first_occurrences(keys: np.ndarray) -> np.ndarray:
    """A mask of the rows whose text no earlier row has."""
    first = np.zeros(len(keys), bool)
    if len(keys):
        first[np.unique(keys, axis=0, return_index=True)[1]] = True
    return first


def _window_end(row: int) -> int:
    """The row of the table at which the window of `row` ends."""
    for end in FIRST_WINDOWS:
        if row < end:
            return end
    return (row // WINDOW_ROWS + 1) * WINDOW_ROWS


def tokenize_windows(
    texts: Iterable[tuple[np.ndarray, list[str]]],
    encoder: Encoder,
    shared: TokenStore | None = None,
    cutter: SegmentCutter | None = None,
) -> Iterator[Window]:
    """Tokenise keys and texts, window by window; what `shared` has is not tokenised again.

    With a `cutter`, texts that are too long are cut into segments; else they are truncated.
    """
    for keys, window in texts:
        yield _tokenize_window(keys, window, encoder, shared, cutter)


def tokenize_arriving(
    texts: Iterable[tuple[np.ndarray, list[str]] | None],
    encoder: Encoder,
    shared: TokenStore | None = None,
    cutter: SegmentCutter | None = None,
) -> Iterator[Window | None]:
    """The same for texts that may not be there yet: None is passed on."""
    for each in texts:
        yield None if each is None else _tokenize_window(*each, encoder, shared, cutter)


def _tokenize_window(
    keys: np.ndarray,
    texts: list[str],
    encoder: Encoder,
    shared: TokenStore | None,
    cutter: SegmentCutter | None,
) -> Window:
    started = time.perf_counter()
    tokenized = encoder.tokenize(texts) if shared is None else _tokenize_missing(keys, texts, encoder, shared)
    tokenized = tokenized if cutter is None else cutter.in_segments(texts, tokenized)
    return Window(keys, tokenized, time.perf_counter() - started)


def predict_ahead(
    windows: Iterable[Window | None], encoder: Encoder, capabilities: Collection[Capability | None]
) -> Iterator[Window | None]:
    """Predict the memory for the lengths of each window while it is being worked on, so that no worker waits."""
    for window in windows:
        yield window
        if window is None:
            continue
        for rows, length in points_to_predict(np.unique(window.texts.lengths).tolist()):
            for capability in capabilities:
                encoder.peak_bytes(rows, length, capability)
            time.sleep(0.001)  # a worker may be waiting for a prediction: let it go first


def _tokenize_missing(keys: np.ndarray, texts: list[str], encoder: Encoder, shared: TokenStore) -> TokenizedTexts:
    missing = np.flatnonzero(~shared.holds(keys))
    if len(missing):
        fresh = encoder.tokenize([texts[row] for row in missing])
        shared.append(keys[missing], fresh.rows, fresh.over)
    rows, over = shared.read(keys)
    return TokenizedTexts(rows, np.array([len(row) for row in rows]), over)


def cutter_for(encoder: Encoder, identity: PassIdentity) -> SegmentCutter | None:
    """What cuts the texts of a pass that are too long, if their segments are pooled."""
    return SegmentCutter(encoder, identity.overlap) if identity.overlong == "pool" else None
