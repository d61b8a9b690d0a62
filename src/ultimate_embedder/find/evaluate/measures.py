"""nDCG@10, recall@100, MRR@10 and MAP of each query, computed by ir-measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultimate_embedder.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

MEASURES = ("ndcg@10", "recall@100", "mrr@10", "map")
"""The names of the measures, the first of which decides."""
DECIDING = MEASURES[0]
DEPTH = 100  # documents of a ranking that count: for recall, and for MAP
TOP = 10
_SCORES = [-float(place) for place in range(DEPTH)]
INSTALL = "pip install 'ultimate-embedder[evaluate]'"


@dataclass(frozen=True)
class Relevant:
    """The grades of one query: those of documents by row, and of documents that are not in the collection."""

    by_row: Mapping[int, int]
    missing: tuple[int, ...] = ()


def require_ir_measures() -> Any:
    """The package `ir_measures`, or how to install it."""
    try:
        import ir_measures
    except ImportError as error:
        raise UsageError(f"evaluate needs the package ir-measures ({error}). Install it: {INSTALL}") from error
    return ir_measures


def measure_rankings(
    rankings: Sequence[np.ndarray], relevant: Sequence[Relevant], *, only_deciding: bool = False
) -> np.ndarray:
    """The measures of each ranking (rows of documents, best first): queries x measures.

    With `only_deciding`, only the first is computed, and the others are 0.
    """
    import numpy as np

    package = require_ir_measures()
    grades = {str(number): _grades(each) for number, each in enumerate(relevant)}
    values = np.zeros((len(relevant), len(MEASURES)))
    # few documents where few are enough: the computation sorts them again
    steps = [({package.nDCG @ TOP: 0, package.RR @ TOP: 2}, TOP), ({package.R @ DEPTH: 1, package.AP: 3}, DEPTH)]
    for columns, depth in steps[:1] if only_deciding else steps:
        runs = {str(number): _run(ranking, depth) for number, ranking in enumerate(rankings)}
        for found in package.iter_calc(list(columns), grades, runs):
            values[int(found.query_id), columns[found.measure]] = found.value
    return values


def perfect_order(ranking: np.ndarray, relevant: Relevant, depth: int) -> np.ndarray:
    """The ranking with its first `depth` documents in the best possible order."""
    import numpy as np

    grades = np.array([relevant.by_row.get(int(row), 0) for row in ranking[:depth]])
    best_first = np.argsort(-grades, kind="stable")
    return np.concatenate([ranking[:depth][best_first], ranking[depth:]])


def _grades(relevant: Relevant) -> dict[str, int]:
    found = {str(row): grade for row, grade in relevant.by_row.items()}
    return found | {f"missing {number}": grade for number, grade in enumerate(relevant.missing)}


def _run(ranking: np.ndarray, depth: int) -> dict[str, float]:
    """The first documents; the scores are the order, as what ties mean was decided before."""
    return dict(zip(map(str, ranking[:depth].tolist()), _SCORES, strict=False))
