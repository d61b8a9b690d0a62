"""Vectors of segments become those of their texts, as soon as all segments of a text are encoded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ultimate_embedder.execution.batches import EncodedBatch, bad_rows, not_finite
from ultimate_embedder.execution.windows import Window
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import SegmentRows
from ultimate_embedder.vectors import pool_segments

TextKey = tuple[int, int]


@dataclass(frozen=True)
class TextVectors:
    """Texts of a window that are done, by number, and the vector of each."""

    texts: np.ndarray
    vectors: np.ndarray


class SegmentPool:
    """Keeps vectors of segments until those of a whole text are there; may be used from any thread."""

    def __init__(self, *, normalize: bool, sparse: bool = False) -> None:
        """`sparse` vectors are pooled like those of tokens in a model: the largest value of each word counts."""
        self._normalize = normalize
        self._sparse = sparse
        self._waiting: dict[TextKey, dict[int, np.ndarray | None]] = {}
        """By text: the vectors of its rows; None for one that is unusable."""
        self._lock = OrderedLock("segments", Rank.COUNTS)

    def add(self, window: Window, encoded: EncodedBatch) -> TextVectors:
        """Take the vectors of a batch; gives those of the texts that are done with it and have a usable vector."""
        rows, good, segments = encoded.started.rows, ~encoded.bad, window.texts.segments
        if segments is None:
            return TextVectors(rows[good], encoded.vectors[good])
        texts = segments.text_of_row[rows]
        alone = segments.rows_per_text[texts] == 1
        done: dict[int, np.ndarray] = {}
        with self._lock:
            for position in np.flatnonzero(~alone):
                row, text = int(rows[position]), int(texts[position])
                key = (int(window.keys[text, 0]), int(window.keys[text, 1]))
                mine = self._waiting.setdefault(key, {})
                mine[row] = encoded.vectors[position].copy() if good[position] else None
                if len(mine) == segments.rows_per_text[text]:
                    vector = self._pool(self._waiting.pop(key), segments)
                    done |= {} if vector is None else {text: vector}
        whole = good & alone
        pooled = np.array(list(done.values()), np.float32).reshape(len(done), encoded.vectors.shape[1])
        return TextVectors(
            np.concatenate([texts[whole], np.array(list(done), int)]), np.concatenate([encoded.vectors[whole], pooled])
        )

    def _pool(self, by_row: dict[int, np.ndarray | None], segments: SegmentRows) -> np.ndarray | None:
        """In the order of the text, whichever was done first: so that equal texts have equal vectors."""
        rows = sorted(by_row)
        vectors = [vector for row in rows if (vector := by_row[row]) is not None]
        if len(vectors) < len(rows):
            return None
        if self._sparse:
            largest = np.max(vectors, axis=0)
            return None if not_finite(largest[None])[0] else largest
        pooled = pool_segments(np.array(vectors), segments.weights[rows], normalize=self._normalize)
        return None if bad_rows(pooled[None], unit_norm=False)[0] else pooled
