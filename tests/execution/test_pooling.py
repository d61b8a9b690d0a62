"""Vectors of segments wait for the rest of their text."""

from __future__ import annotations

from typing import Any

import numpy as np

from ultimate_embedder.execution.pooling import SegmentPool
from ultimate_embedder.execution.windows import Window
from ultimate_embedder.models import SegmentRows, TokenizedTexts

KEYS = np.array([[1, 1], [2, 2]], np.uint64)
TEXT_OF_ROW = np.array([0, 1, 1, 1])
WINDOW = Window(
    KEYS,
    TokenizedTexts(
        [None] * 4, np.full(4, 8), np.array([0, 9]), SegmentRows(TEXT_OF_ROW, np.array([5, 1, 2, 1]), np.full(2, 8))
    ),
    0.0,
)
VECTORS = np.array([[3, 4], [1, 0], [0, 1], [1, 0]], np.float32)


def batch(*rows: int, bad: tuple[int, ...] = ()) -> Any:
    class Started:
        pass

    class Encoded:
        started: Any = Started()

    Encoded.started.rows = np.array(rows)
    encoded: Any = Encoded()
    encoded.vectors, encoded.bad = VECTORS[list(rows)], np.array([row in bad for row in rows])
    return encoded


def test_a_text_is_done_with_its_last_segment_in_whichever_order_they_come() -> None:
    pool = SegmentPool(normalize=False)
    first = pool.add(WINDOW, batch(3, 0))
    assert (first.texts.tolist(), first.vectors.tolist()) == ([0], [[3, 4]])
    assert not len(pool.add(WINDOW, batch(1)).texts)
    last = pool.add(WINDOW, batch(2))
    assert (last.texts.tolist(), last.vectors.tolist()) == ([1], [[0.5, 0.5]])


def test_a_text_with_an_unusable_segment_has_no_vector() -> None:
    pool = SegmentPool(normalize=False)
    done = pool.add(WINDOW, batch(0, 1, 2, 3, bad=(2,)))
    assert done.texts.tolist() == [0]
