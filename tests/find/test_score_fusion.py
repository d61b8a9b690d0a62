"""Legs of scores become one ranking."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdrant_edge import (
    Distance,
    EdgeConfig,
    EdgeShard,
    EdgeVectorParams,
    Fusion,
    Point,
    Prefetch,
    Query,
    QueryRequest,
    UpdateOperation,
)

from ultimate_embedder.errors import UsageError
from ultimate_embedder.find import SCORE_FUSIONS, Leg, Ranked, fuse_legs, fuse_scores, keep_top, top_columns

LEGS = ("a", "b", "c")


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeShard]:
    """Forty points with three named vectors, in the engine."""
    folder: Path = tmp_path_factory.mktemp("shard")
    random = np.random.default_rng(0)
    params = {name: EdgeVectorParams(size=8, distance=Distance.Cosine) for name in LEGS}
    shard = EdgeShard.create(str(folder), EdgeConfig(vectors=params))
    points = [
        Point(
            id=str(uuid.UUID(int=number)),
            vector={name: random.standard_normal(8).tolist() for name in LEGS},
            payload={},
        )
        for number in range(1, 41)
    ]
    shard.update(UpdateOperation.upsert_points(points))
    yield shard
    shard.close()


def _nearest(name: str) -> Query:
    vector = np.random.default_rng(LEGS.index(name) + 1).standard_normal(8)
    return Query.Nearest(vector.tolist(), using=name)


def _leg(shard: EdgeShard, name: str, limit: int, weight: float = 1.0) -> Leg:
    hits = shard.query(QueryRequest(query=_nearest(name), limit=limit))
    return Leg([str(hit.id) for hit in hits], [hit.score for hit in hits], weight)


@pytest.mark.parametrize("limit", [1, 2, 10, 40])
@pytest.mark.parametrize(("method", "query"), [("rrf", Fusion.Rrf(k=61)), ("dbsf", Fusion.Dbsf())])
def test_without_weights_rrf_and_dbsf_give_the_scores_of_the_engine(
    shard: EdgeShard, method: str, query: Fusion, limit: int
) -> None:
    prefetches = [Prefetch(query=_nearest(name), limit=limit) for name in LEGS]
    theirs = shard.query(QueryRequest(query=query, prefetches=prefetches, limit=100))
    ours = fuse_legs(method, [_leg(shard, name, limit) for name in LEGS])
    assert {each.id: each.score for each in ours} == pytest.approx({str(hit.id): hit.score for hit in theirs}, abs=1e-5)
    assert [each.score for each in ours] == pytest.approx([hit.score for hit in theirs], abs=1e-5)


def test_a_weight_multiplies_what_a_leg_contributes_in_every_method() -> None:
    strong, weak = Leg(["x", "y", "z"], [0.9, 0.5, 0.1], 1.0), Leg(["y", "x", "z"], [9.0, 2.0, 1.0], 0.3)
    for method in SCORE_FUSIONS:
        alone = [
            {each.id: each.score for each in fuse_legs(method, [Leg(leg.ids, leg.scores)])} for leg in (strong, weak)
        ]
        fused = fuse_legs(method, [strong, weak])
        assert {each.id: each.score for each in fused} == pytest.approx(
            {name: alone[0][name] + 0.3 * alone[1][name] for name in "xyz"}
        )
        assert fused[0].id == "x"


def test_rrf_is_the_formula_of_the_paper() -> None:
    ranked = fuse_legs("rrf", [Leg(["p", "q"], [2.0, 1.0]), Leg(["q"], [0.3], 2.0)])
    assert ranked == [Ranked("q", 1 / 62 + 2 / 61, (1.0, 0.3)), Ranked("p", 1 / 61, (2.0, None))]


def test_zscores_are_standardised_over_the_candidates() -> None:
    ranked = fuse_legs("zscore", [Leg(["p", "q", "r"], [3.0, 2.0, 1.0]), Leg(["p", "q", "r"], [10.0, 70.0, 10.0])])
    first, second = np.array([3, 2, 1.0]), np.array([10, 70, 10.0])
    wanted = (first - 2) / first.std() + (second - 30) / second.std()
    assert {each.id: each.score for each in ranked} == pytest.approx(dict(zip("pqr", wanted, strict=True)))


def test_a_candidate_that_a_leg_does_not_have_counts_as_its_lowest_in_zscore() -> None:
    ranked = fuse_legs("zscore", [Leg(["p", "q"], [3.0, 1.0]), Leg(["r"], [0.5])])
    assert {each.id: each.score for each in ranked} == {"p": 1.0, "q": -1.0, "r": -1.0}


@pytest.mark.parametrize("method", SCORE_FUSIONS)
def test_equal_scores_are_ordered_by_id_and_a_constant_leg_changes_nothing(method: str) -> None:
    third = 0.1 + 0.2  # not the same number as 0.3
    constant = Leg(["d", "c", "b", "a"], [0.3, third, 0.3, third])
    assert [each.id for each in fuse_legs("zscore", [constant])] == ["a", "b", "c", "d"]
    decides = Leg(["a", "b", "c", "d"], [1.0, 2.0, 3.0, 3.0])
    ids = [each.id for each in fuse_legs(method, [Leg(constant.ids, [0.3] * 4, 0.001), decides])]
    assert ids == ["c", "d", "b", "a"]


@pytest.mark.parametrize("method", SCORE_FUSIONS)
def test_empty_legs_one_candidate_and_no_weight(method: str) -> None:
    assert fuse_legs(method, []) == []
    assert fuse_legs(method, [Leg([], []), Leg([], [])]) == []
    (alone,) = fuse_legs(method, [Leg([], []), Leg(["x"], [0.7])])
    assert (alone.id, alone.leg_scores) == ("x", (None, 0.7))
    assert math.isfinite(alone.score)
    assert [each.id for each in fuse_legs(method, [Leg(["x"], [1.0]), Leg(["y"], [2.0], 0.0)])] == ["x"]


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_what_cannot_be_a_weight_is_refused(weights: list[float]) -> None:
    with pytest.raises(UsageError, match="weight"):
        fuse_scores("rrf", [np.ones((1, 2)), np.ones((1, 2))], weights)


SCORES = st.one_of(st.floats(), st.sampled_from([0.0, 0.5, 1.0, math.nan, 1e-30, 3e38]))


@given(st.lists(st.lists(SCORES, min_size=5, max_size=5), min_size=1, max_size=4), st.sampled_from(SCORE_FUSIONS))
def test_whatever_the_scores_are_no_result_is_nan(rows: list[list[float]], method: str) -> None:
    legs = [np.array([row, row[::-1]]) for row in rows]
    fused = fuse_scores(method, legs)
    assert not np.isnan(fused).any()
    assert not np.isposinf(fused).any()
    seen = np.logical_or.reduce([np.abs(leg) <= 1e38 for leg in legs])
    assert (np.isfinite(fused) == seen).all()


@pytest.mark.parametrize("method", SCORE_FUSIONS)
def test_all_queries_at_once_give_what_each_gives_alone(method: str) -> None:
    random = np.random.default_rng(3)
    legs = [random.standard_normal((7, 30)).astype(np.float32).round(1) for _ in range(3)]  # rounded: with ties
    kept = [keep_top(leg, 12) for leg in legs]
    fused = fuse_scores(method, kept, [1.0, 0.5, 2.0])
    best = top_columns(fused, 5)
    for query in range(7):
        held = [np.flatnonzero(~np.isnan(leg[query])) for leg in kept]
        alone = [
            Leg([f"{column:02d}" for column in columns], leg[query][columns], weight)
            for leg, columns, weight in zip(kept, held, [1.0, 0.5, 2.0], strict=True)
        ]
        assert [int(each.id) for each in fuse_legs(method, alone, 5)] == best[query].tolist()


def test_the_highest_are_kept_and_of_equal_ones_the_first() -> None:
    scores = np.array([[0.1, 0.5, 0.5, 0.5, np.nan], [np.nan, np.nan, -np.inf, 0.2, np.inf]])
    kept = keep_top(scores, 2)
    assert np.array_equal(
        kept, [[np.nan, 0.5, 0.5, np.nan, np.nan], [np.nan, np.nan, np.nan, 0.2, np.nan]], equal_nan=True
    )
    assert top_columns(np.array([[0.1, 0.5, 0.5, 0.7]]), 2).tolist() == [[3, 1]]
    assert top_columns(np.array([[0.1, 0.5]]), 100).tolist() == [[1, 0]]
