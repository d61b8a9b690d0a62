"""A few texts to test a model with, and the cosine similarity of two results."""

from __future__ import annotations

import numpy as np

CANARY = ("A short one.", "Ünïcode, 表, 🙂 and\nnewlines.  ", "word " * 40)


def row_cosines(ours: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Cosine similarity of each row to the same row of the reference."""
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(reference, axis=1)
    return np.asarray((ours * reference).sum(axis=1) / lengths)
