"""Rerank the candidates of all queries: the same lines as `search --rerank`, without its hits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ultimate_embedder.events import (
    Emit,
    EvaluationAdvanced,
    EvaluationEnded,
    EvaluationStarted,
    Event,
    Mitigated,
    ModelLoadStarted,
    Warned,
)
from ultimate_embedder.export import PointsFile
from ultimate_embedder.find.options import SearchPlace
from ultimate_embedder.find.rerank import Rerankers

Score = Callable[[Sequence[str], np.ndarray], np.ndarray]
"""From texts of queries and rows of candidates (-1: none) to a score for each."""
TOLD = (Mitigated, Warned, ModelLoadStarted)
"""What matters of a reranker's events: leases of each query do not."""
BLOCK_QUERIES = 32  # whose texts are in memory


@contextlib.contextmanager
def open_reranker(name: str, wanted: SearchPlace, points: PointsFile, emit: Emit) -> Iterator[Score]:
    """A reranker, loaded, for the block."""

    def tell(event: Event) -> None:
        if isinstance(event, TOLD):
            emit(event)

    rerankers = Rerankers(wanted, tell)
    try:
        model = rerankers.load(name)

        def score(queries: Sequence[str], rows: np.ndarray) -> np.ndarray:
            what = f"reranking with {model.name}"
            scores = np.full(rows.shape, -np.inf, np.float32)
            emit(EvaluationStarted(collection=points.collection, what=what, total=len(queries)))
            for start in range(0, len(queries), BLOCK_QUERIES):
                part = slice(start, start + BLOCK_QUERIES)
                texts = _texts(points, rows[part])
                for query, mine, target in zip(queries[part], rows[part], scores[part], strict=True):
                    known = np.flatnonzero(mine >= 0)
                    if len(known):
                        target[known] = model.score(query, [texts[row] for row in mine[known].tolist()], tell).scores
                emit(EvaluationAdvanced(collection=points.collection, what=what, queries=len(rows[part])))
            emit(EvaluationEnded(collection=points.collection, what=what))
            return scores

        yield score
    finally:
        rerankers.close()


def _texts(points: PointsFile, rows: np.ndarray) -> dict[int, str]:
    wanted = np.unique(rows[rows >= 0]).tolist()
    return {row: str(payload["text"]) for row, payload in zip(wanted, points.read_payloads(wanted), strict=True)}
