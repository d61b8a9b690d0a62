"""Rows of an evaluation: means, intervals and comparisons of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ultimate_embedder.find.evaluate.measure import Values, deciding
from ultimate_embedder.find.evaluate.measures import MEASURES
from ultimate_embedder.find.evaluate.result import Compared, EvaluationRow
from ultimate_embedder.find.evaluate.statistics import Interval, bootstrap_intervals, compare
from ultimate_embedder.find.evaluate.ways import Way


def best_model(ways: Sequence[Way], values: Values) -> str | None:
    """The model that is best alone; None if no model can be searched alone."""
    models = [way.name for way in ways if way.kind == "model"]
    return max(models, key=lambda name: float(deciding(values[name]).mean()), default=None)


def make_rows(ways: Sequence[Way], values: Values, seed: int, baseline: str | None) -> list[EvaluationRow]:
    """A row for each way. Smaller vectors are compared with their model, all others with `baseline`."""
    compared: dict[str, Compared] = {}
    families: dict[str, list[str]] = {}
    for way in ways:
        to = way.baseline or baseline
        if to is not None and to != way.name and way.kind != "ceiling":
            families.setdefault("" if way.baseline is None else "own model", []).append(way.name)
    for names in families.values():
        compared |= _compare(names, {way.name: way.baseline or baseline or "" for way in ways}, values, seed)
    intervals = bootstrap_intervals(np.concatenate([values[way.name] for way in ways], axis=1), seed)
    by_way = zip(*[iter(intervals)] * len(MEASURES), strict=True)
    return [_row(way, values[way.name], compared.get(way.name), mine) for way, mine in zip(ways, by_way, strict=True)]


def _compare(names: Sequence[str], to: Mapping[str, str], values: Values, seed: int) -> dict[str, Compared]:
    """Compare ways with others; all p values are corrected together."""
    differences = np.stack([deciding(values[name]) - deciding(values[to[name]]) for name in names], axis=1)
    found = compare(differences, np.zeros(len(differences)), seed)
    return {name: Compared.of(to[name], each) for name, each in zip(names, found, strict=True)}


def _row(way: Way, values: np.ndarray, compared: Compared | None, intervals: Sequence[Interval]) -> EvaluationRow:
    means = dict(zip(MEASURES, values.mean(axis=0).tolist(), strict=True))
    return EvaluationRow.model_validate(
        {
            "name": way.name,
            "kind": way.kind,
            **means,
            "interval": {name: (each.low, each.high) for name, each in zip(MEASURES, intervals, strict=True)},
            "compared": compared,
            "models": list(way.models),
            "bytes_per_chunk": way.bytes_per_chunk,
            "note": way.note,
        }
    )
