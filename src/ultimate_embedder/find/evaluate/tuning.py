"""Weights of the legs of a fusion, chosen on one half of the queries and tested on the other half only."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.errors import UsageError
from ultimate_embedder.find.candidates import Candidates, as_documents
from ultimate_embedder.find.evaluate.measure import Values, deciding
from ultimate_embedder.find.evaluate.measures import Relevant, measure_rankings
from ultimate_embedder.find.evaluate.result import Statement, Tuned
from ultimate_embedder.find.evaluate.table import make_rows
from ultimate_embedder.find.evaluate.task import Task
from ultimate_embedder.find.evaluate.ways import HYBRID, Plan, Way
from ultimate_embedder.find.options import DEFAULT_FUSION

STEPS = {2: 20, 3: 10, 4: 5, 5: 4}  # of a weight from 0 to 1, by number of legs: about 60 combinations
FEWEST_STEPS = 3
FEWEST_QUERIES = 10  # of each half
LARGEST_HALF = 0.75
TUNED = "tuned weights"


@dataclass(frozen=True)
class Halves:
    """The queries that weights are chosen on, and those that they are tested on."""

    tune: np.ndarray
    test: np.ndarray


def tune_weights(task: Task, kept: Sequence[Candidates], plan: Plan, split: str, seed: int) -> Tuned:
    """Choose the weights of all legs on one half of the queries, and measure them on the other."""
    count = sum(len(each.rows) for each in kept)
    halves = split_queries(task.relevant[:count], split, seed)
    given = {name: plan.weights[DEFAULT_FUSION][name] for name in plan.tuned}
    before = {name: weight / sum(given.values()) for name, weight in given.items()}
    tune, test = (_Half(task, _chosen(kept, queries), queries) for queries in (halves.tune, halves.test))
    grid = [dict(zip(before, weights, strict=True)) for weights in weight_grid(len(before))]
    # of equally good ones those nearest to what was before
    best = max(grid, key=lambda weights: (round(tune.mean(weights), 6), -_distance(weights, before)))
    kinds = {way.name: way.kind for way in plan.ways}
    hybrid = any(kinds[name] == "sparse" for name in before)
    stored = f"{HYBRID}{DEFAULT_FUSION}" if hybrid else DEFAULT_FUSION
    tuned = f"{stored}, {TUNED}"
    values: Values = {name: test.measure({name: 1.0}) for name in before}
    values |= {stored: test.measure(before), tuned: test.measure(best)}
    legs = {way.name: way for way in plan.ways if way.name in before}
    ways = [*legs.values(), *(Way(name, "hybrid" if hybrid else "fusion", tuple(before)) for name in (stored, tuned))]
    return Tuned(
        method=stored,
        split=split,
        tuned_on=len(halves.tune),
        tested_on=len(halves.test),
        weights=best,
        weights_before=before,
        rows=make_rows(ways, values, seed, baseline=stored),
    )


def about_tuning(found: Tuned) -> Statement:
    """What the tuned weights are worth, in words."""
    row = next(row for row in found.rows if row.name.endswith(TUNED))
    base = next(row for row in found.rows if row.name == found.method)
    alone = max((row for row in found.rows if row.kind in ("model", "sparse")), key=lambda row: row.ndcg)
    helps = row.compared is not None and row.compared.significant and row.compared.difference > 0
    told = "tuned weights help" if helps else "tuned weights do not help more than chance explains"
    if found.weights == found.weights_before:
        told = "the weights are the best already"
    words = (
        f"{told}: {found.method} {row.ndcg:.3f}, with the weights before {base.ndcg:.3f}{row.evidence}, the best leg "
        f"alone {alone.ndcg:.3f} ({alone.name}); chosen on {found.tuned_on} queries, measured on {found.tested_on} "
        "others"
    )
    weights = ",".join(f"{name}={weight:g}" for name, weight in found.weights.items())
    return Statement(about="weights", words=words, command=f"search --weights {weights}" if helps else "")


@dataclass(frozen=True)
class _Half:
    """The candidates of some queries, which can be fused with any weights."""

    task: Task
    candidates: Sequence[Candidates]
    queries: np.ndarray

    def measure(self, weights: Mapping[str, float], *, only_deciding: bool = False) -> np.ndarray:
        document = self.task.documents.document
        used = {name: weight for name, weight in weights.items() if weight > 0}
        fused = (rows for each in self.candidates for rows in each.fuse(DEFAULT_FUSION, used).rows)
        rankings = [as_documents(rows, document) for rows in fused]
        relevant = [self.task.relevant[query] for query in self.queries]
        return measure_rankings(rankings, relevant, only_deciding=only_deciding)

    def mean(self, weights: Mapping[str, float]) -> float:
        return float(deciding(self.measure(weights, only_deciding=True)).mean())


def _chosen(kept: Sequence[Candidates], queries: np.ndarray) -> list[Candidates]:
    """The candidates of some queries, in their order."""
    found, start = [], 0
    for each in kept:
        inside = queries[(queries >= start) & (queries < start + len(each.rows))] - start
        if len(inside):
            found.append(each.of(inside))
        start += len(each.rows)
    return found


def _distance(weights: Mapping[str, float], others: Mapping[str, float]) -> float:
    return sum(abs(weights[name] - others[name]) for name in weights)


def split_queries(relevant: Sequence[Relevant], split: str, seed: int) -> Halves:
    """Two random halves of the queries; by document, queries that share a relevant document are in the same half."""
    groups = [[query] for query in range(len(relevant))] if split == "query" else _groups(relevant)
    order = np.random.default_rng(seed).permutation(len(groups))
    # large groups first, so that the halves can be made even
    by_size = sorted(order.tolist(), key=lambda group: -len(groups[group]))
    halves: tuple[list[int], list[int]] = ([], [])
    for group in by_size:
        halves[len(halves[0]) > len(halves[1])].extend(groups[group])
    smaller = min(map(len, halves))
    if smaller < FEWEST_QUERIES or smaller < (1 - LARGEST_HALF) * len(relevant):
        how = f"by {split}: {len(relevant)} queries become {len(halves[0])} and {len(halves[1])}"
        other = ". Queries share too many documents; try --split query" if split == "document" else ""
        raise UsageError(f"--tune: the queries cannot be split {how}, and each half needs {FEWEST_QUERIES}{other}.")
    return Halves(np.array(sorted(halves[0])), np.array(sorted(halves[1])))


def _groups(relevant: Sequence[Relevant]) -> list[list[int]]:
    """Queries that are connected by relevant documents."""
    parent = list(range(len(relevant)))

    def root(query: int) -> int:
        while parent[query] != query:
            parent[query] = parent[parent[query]]
            query = parent[query]
        return query

    first: dict[int, int] = {}
    for query, each in enumerate(relevant):
        for row, grade in each.by_row.items():
            if grade > 0:
                parent[root(query)] = root(first.setdefault(row, query))
    found: dict[int, list[int]] = {}
    for query in range(len(relevant)):
        found.setdefault(root(query), []).append(query)
    return list(found.values())


def weight_grid(legs: int) -> Iterator[tuple[float, ...]]:
    """Weights in equal steps that sum to one."""
    steps = STEPS.get(legs, FEWEST_STEPS)
    for cuts in itertools.combinations(range(steps + legs - 1), legs - 1):
        edges = (-1, *cuts, steps + legs - 1)
        yield tuple((after - before - 1) / steps for before, after in itertools.pairwise(edges))
