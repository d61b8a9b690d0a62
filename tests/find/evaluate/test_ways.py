"""What each way finds, and what is said about it, for vectors and judgements made by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from qdrant_edge import (
    EdgeConfig,
    EdgeShard,
    EdgeSparseVectorParams,
    Modifier,
    Point,
    Query,
    QueryRequest,
    SparseVector,
    UpdateOperation,
)

from ultimate_embedder.errors import UsageError
from ultimate_embedder.find.candidates import TieBreak
from ultimate_embedder.find.evaluate.documents import Documents
from ultimate_embedder.find.evaluate.measure import Measured, Search, measure
from ultimate_embedder.find.evaluate.measures import Relevant
from ultimate_embedder.find.evaluate.result import EvaluationRow
from ultimate_embedder.find.evaluate.sources import ModelVectors, Sources
from ultimate_embedder.find.evaluate.table import best_model, make_rows
from ultimate_embedder.find.evaluate.task import Matching, Task, Unmatched
from ultimate_embedder.find.evaluate.tuning import split_queries, tune_weights, weight_grid
from ultimate_embedder.find.evaluate.verdict import make_verdict
from ultimate_embedder.find.evaluate.ways import plan_ways
from ultimate_embedder.find.sparse import inverse_frequencies
from ultimate_embedder.types import PassIdentity

QUERIES = 40
SECOND = 1 / math.log2(3)  # nDCG of a relevant document on the second place


class Rows:
    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors = np.asarray(vectors, np.float32)

    def blocks(self, rows: int) -> Iterator[np.ndarray]:
        for start in range(0, len(self.vectors), rows):
            yield self.vectors[start : start + rows]


def model(name: str, vectors: np.ndarray) -> ModelVectors:
    identity = PassIdentity(name, "1", "0" * 64, "float32", None, None, None)
    return ModelVectors(name, identity, 0.5, vectors.shape[1], Rows(vectors))


def task(relevant: list[Relevant], chunks: int) -> Task:
    none = Unmatched()
    matching = Matching(len(relevant), len(relevant), len(relevant), none, none, none, none, 0)
    documents = Documents(np.zeros((chunks, 2), np.uint64), None, chunks, {})
    ids = tuple(f"q{number}" for number in range(len(relevant)))
    return Task(ids, ids, tuple(relevant), documents, matching, ())


def search(vectors: Mapping[str, np.ndarray], queries: Mapping[str, np.ndarray], relevant: list[Relevant]) -> Search:
    chunks = len(next(iter(vectors.values())))
    sources = Sources(tuple(model(name, each) for name, each in vectors.items()), "named")
    asked = {name: np.asarray(each, np.float32) for name, each in queries.items()}
    plan = plan_ways(sources, asked, [], chunks=chunks)
    rows = {name: Rows(each) for name, each in vectors.items()}
    return Search(task(relevant, chunks), plan, rows, 100, TieBreak(chunks, 0), "docs")


def measured(
    vectors: Mapping[str, np.ndarray], queries: Mapping[str, np.ndarray], relevant: list[Relevant]
) -> Measured:
    return measure(search(vectors, queries, relevant), lambda event: None, ceiling_depth=100)


def rows_of(found: Measured) -> dict[str, EvaluationRow]:
    best = best_model(found.ways, found.values)
    return {row.name: row for row in make_rows(found.ways, found.values, 0, best)}


@pytest.fixture(scope="module")
def two_models() -> Measured:
    """Query i is about chunk i. The good model finds it first; the bad one is misled in the same way every time."""
    good = np.eye(QUERIES, dtype=np.float32)
    bad = np.roll(good, 1, axis=0) + 0.5 * good
    asked = {"good": good, "bad": good}
    return measured({"good": good, "bad": bad}, asked, [Relevant({number: 1}) for number in range(QUERIES)])


def test_models_and_fusions_have_the_figures_computed_by_hand(two_models: Measured) -> None:
    rows = rows_of(two_models)
    assert rows["good"].ndcg == 1.0
    assert rows["bad"].ndcg == pytest.approx(SECOND)
    assert rows["bad"].mrr == 0.5
    assert rows["zscore"].ndcg == 1.0  # 1 and 0.45 for the right one, 0 and 0.9 for the wrong one
    assert rows["bad, binary"].ndcg < 1.0  # both have their sign
    assert rows["bad, best 100 in perfect order"].ndcg == 1.0
    assert rows["bad"].compared is not None
    assert rows["bad"].compared.difference == pytest.approx(SECOND - 1)
    assert rows["bad"].compared.worse == QUERIES
    assert rows["bad"].compared.significant
    assert rows["good"].compared is None
    assert rows["good"].interval["ndcg@10"] == (1.0, 1.0)


def test_the_verdict_drops_the_model_that_does_not_help(two_models: Measured) -> None:
    rows = list(rows_of(two_models).values())
    said = {each.about: each for each in make_verdict(rows, two_models.values, "zscore", 0)}
    assert said["advice"].words.startswith("take good")
    assert said["drop"].words.startswith("bad can be dropped")
    assert said["drop"].command == "embed --models good"
    assert "does not lose more than chance explains" in said["drop"].words
    typed = make_verdict(rows, two_models.values, "zscore", 0, typed={"good": "./my models/good"})
    assert "embed --models './my models/good'" in [each.command for each in typed]
    assert said["model"].words.startswith("good is the best")


def test_the_verdict_keeps_models_that_help_each_other() -> None:
    """Each model knows one half of the queries, and is undecided about the other half: together they know all."""
    half = QUERIES // 2
    known, unknown = np.eye(QUERIES), np.random.default_rng(0).uniform(0.1, 0.2, (QUERIES, QUERIES))
    first = np.where(np.arange(QUERIES)[:, None] < half, known, unknown)
    second = np.where(np.arange(QUERIES)[:, None] >= half, known, unknown)
    documents = {"one": np.eye(QUERIES), "two": np.eye(QUERIES)}
    found = measured(documents, {"one": first, "two": second}, [Relevant({n: 1}) for n in range(QUERIES)])
    rows = rows_of(found)
    assert rows["zscore"].ndcg > 0.9 > rows["one"].ndcg
    said = {each.about: each for each in make_verdict(list(rows.values()), found.values, "zscore", 0)}
    assert said["drop"].words.startswith("drop no model")
    assert said["ensemble"].words.startswith("the ensemble beats its best model")
    assert said["advice"].words.startswith(("take zscore", "take rrf", "take dbsf", "take concat", "take weighted"))


def test_models_of_different_sizes_have_no_average_and_that_is_said() -> None:
    plan = search({"a": np.eye(4), "b": np.eye(4)[:, :3] + 0.1}, {"a": np.eye(4), "b": np.eye(4)[:, :3]}, []).plan
    assert "concat" in [way.name for way in plan.ways]
    assert "weighted_average" not in [way.name for way in plan.ways]
    assert plan.notes[0].startswith("weighted_average is left out")


def test_weights_are_chosen_on_one_half_and_measured_on_the_other_only() -> None:
    good = np.eye(QUERIES, dtype=np.float32)
    bad = np.roll(good, 1, axis=0)
    found = search({"bad": bad, "good": good}, {"bad": good, "good": good}, [Relevant({n: 1}) for n in range(QUERIES)])
    kept = measure(found, lambda event: None, ceiling_depth=10, keep=True).kept
    tuned = tune_weights(found.task, kept, found.plan, "query", 0)
    assert tuned.weights["good"] > tuned.weights["bad"]
    assert (tuned.tuned_on, tuned.tested_on) == (QUERIES // 2, QUERIES // 2)
    assert {row.name: row.ndcg for row in tuned.rows}["zscore, tuned weights"] == 1.0


def test_weights_on_a_grid_sum_to_one() -> None:
    for legs in range(2, 8):
        grid = list(weight_grid(legs))
        assert len(set(grid)) == len(grid) > 20
        assert all(sum(weights) == pytest.approx(1.0) and min(weights) >= 0 for weights in grid)


def test_queries_that_share_a_document_stay_in_the_same_half() -> None:
    relevant = [Relevant({number // 2: 1, 100 + number: 0}) for number in range(40)]
    halves = split_queries(relevant, "document", 0)
    tune = set(halves.tune.tolist())
    assert len(tune) == 20
    assert all((number in tune) == (number ^ 1 in tune) for number in range(40))
    assert split_queries(relevant, "document", 0).tune.tolist() == halves.tune.tolist()
    with pytest.raises(UsageError, match="try --split query"):
        split_queries([Relevant({0: 1})] * 40, "document", 0)
    with pytest.raises(UsageError, match="each half needs 10"):
        split_queries(relevant[:10], "query", 0)


def test_inverse_frequencies_are_those_of_the_engine(tmp_path_factory: pytest.TempPathFactory) -> None:
    params = EdgeSparseVectorParams(modifier=Modifier.Idf)
    shard = EdgeShard.create(str(tmp_path_factory.mktemp("idf")), EdgeConfig(sparse_vectors={"s": params}))
    words = [[0, 1], [0], [0, 2], [0, 1, 2]]
    points = [
        Point(id=number + 1, vector={"s": SparseVector(indices=each, values=[1.0] * len(each))}, payload={})
        for number, each in enumerate(words)
    ]
    shard.update(UpdateOperation.upsert_points(points))
    wanted = inverse_frequencies(np.array([4.0, 2.0, 2.0]), 4)
    for word in range(3):
        query = Query.Nearest(SparseVector(indices=[word], values=[1.0]), using="s")
        hits = shard.query(QueryRequest(query=query, limit=4))
        assert [hit.score for hit in hits] == pytest.approx([wanted[word]] * len(hits), abs=1e-6)
    shard.close()
