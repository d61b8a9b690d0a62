"""BM25: what the words of a text weigh, from how often they occur.

Counts are stored, not weights: these depend on the mean length of all chunks, which changes with every chunk that is
added. So nothing is counted again, and all weights always follow from the same mean.
"""

from __future__ import annotations

import numpy as np

from ultimate_embedder.sparse import SparseVectors
from ultimate_embedder.types import Bm25Settings


def weigh_counts(counts: SparseVectors, settings: Bm25Settings, avg_len: float) -> SparseVectors:
    """The BM25 vectors of texts, without IDF, which Qdrant applies when it searches.

    In float64 and rounded once, as Qdrant's engine does it: its vectors have the same bits.
    """
    k, b = settings.k, settings.b
    occurrences = counts.values.astype(np.float64)
    of_length = k * (1 - b + b * counts.row_sums / avg_len)
    weights = occurrences * (k + 1) / (occurrences + np.repeat(of_length, counts.lengths))
    return SparseVectors(counts.indptr, counts.indices, weights.astype(np.float32))
