"""A few texts to try a model on, and how well two answers agree."""

from __future__ import annotations

import numpy as np

CANARY = ("A short one.", "Ünïcode, 表, 🙂 and\nnewlines.  ", "word " * 40)


def row_cosines(ours: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """How well each row agrees with its counterpart."""
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(reference, axis=1)
    return np.asarray((ours * reference).sum(axis=1) / lengths)
