"""How the rows of a batch lie: padded, of one length, or end to end."""

from __future__ import annotations

import numpy as np

from ultimate_embedder.batching import Layout


def layout_of(lengths: np.ndarray, packed: bool) -> Layout:
    """How rows of these lengths lie in a batch."""
    if lengths.min() == lengths.max():
        return "uniform"
    return "packed" if packed else "padded"
