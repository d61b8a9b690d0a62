"""One vector for a text that was encoded in segments: their mean, weighted by tokens; the largest, if it is sparse."""

from __future__ import annotations

import numpy as np

from ultimate_embedder.vectors.fusion import shorten


def pool_segments(vectors: np.ndarray, weights: np.ndarray, *, normalize: bool) -> np.ndarray:
    """The vector of one text from those of its segments, given in their order; of length one with `normalize`."""
    mean = np.asarray((weights / weights.sum()) @ vectors.astype(np.float64), np.float32)
    return np.asarray(shorten(mean[None], None)[0]) if normalize else mean


def pool_largest(vectors: np.ndarray, text_of_row: np.ndarray) -> np.ndarray:
    """One vector per text with the largest numbers of its rows, for vectors with a number for every word."""
    starts = np.flatnonzero(np.diff(text_of_row, prepend=-1))
    return np.asarray(np.maximum.reduceat(vectors, starts))


def pool_texts(vectors: np.ndarray, text_of_row: np.ndarray, weights: np.ndarray, *, normalize: bool) -> np.ndarray:
    """One vector per text; rows of a text are next to each other, and a text of one row keeps its vector."""
    starts = np.flatnonzero(np.diff(text_of_row, prepend=-1))
    pooled: np.ndarray = vectors[starts].copy()
    for text, (start, stop) in enumerate(zip(starts, [*starts[1:], len(vectors)], strict=True)):
        if stop - start > 1:
            pooled[text] = pool_segments(vectors[start:stop], weights[start:stop], normalize=normalize)
    return pooled
