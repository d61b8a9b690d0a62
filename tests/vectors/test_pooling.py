"""The vector of a text from those of its segments."""

from __future__ import annotations

import numpy as np

from ultimate_embedder.vectors import pool_segments, pool_texts

VECTORS = np.array([[1, 0], [0, 1], [0.6, 0.8], [1, 0]], np.float32)


def test_segments_count_by_their_tokens() -> None:
    assert np.allclose(pool_segments(VECTORS[:2], np.array([30, 10]), normalize=False), [0.75, 0.25])


def test_the_mean_is_of_length_one_where_the_model_normalises() -> None:
    pooled = pool_segments(VECTORS[:2], np.array([30, 10]), normalize=True)
    assert np.allclose(pooled, np.array([3, 1]) / 10**0.5)


def test_a_text_in_one_piece_keeps_its_vector() -> None:
    pooled = pool_texts(VECTORS, np.array([0, 0, 1, 2]), np.array([1, 1, 5, 5]), normalize=True)
    assert np.allclose(pooled, [[0.5**0.5, 0.5**0.5], [0.6, 0.8], [1, 0]])
    assert pooled.dtype == np.float32
