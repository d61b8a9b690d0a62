"""The parts of a comparison of vectors that need no output: neighbours, pairs of legs, the scale of a histogram."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ultimate_embedder.find.compare.agree import _round_below
from ultimate_embedder.find.compare.legs import Leg, Maker
from ultimate_embedder.find.compare.measure import measure
from ultimate_embedder.find.compare.nearest import Nearest
from ultimate_embedder.find.compare.pairing import LegPair, pair_legs
from ultimate_embedder.find.options import CANDIDATES, DEFAULT_FUSION
from ultimate_embedder.find.score_fusion import Leg as ScoredLeg
from ultimate_embedder.find.score_fusion import fuse_legs
from ultimate_embedder.vectors import KeyIndex

RANDOM = np.random.default_rng(5)


def unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def leg(name: str = "m", digest: str = "d", dim: int = 8, method: str = "", vectors: Any = None) -> Leg:
    """A leg whose keys are (row, row)."""
    rows = np.zeros((0, dim), np.float32) if vectors is None else vectors
    index = KeyIndex()
    index.add(0, keys(len(rows)))
    return Leg(name, (Maker(name, digest),), method, dim, lambda w: index.find(w) >= 0, lambda w: rows[w[:, 0]])


def keys(count: int) -> np.ndarray:
    return np.stack([np.arange(count, dtype=np.uint64)] * 2, axis=1)


@pytest.mark.parametrize("block", [1, 7, 200])
def test_neighbours_found_block_by_block_are_those_of_all_scores_at_once(block: int) -> None:
    vectors = unit(RANDOM.normal(size=(60, 16)))
    rows = np.array([0, 3, 59])
    nearest = Nearest([vectors[rows]], rows, 60, 5, [1.0])
    for start in range(0, 60, block):
        nearest.see(start, [vectors[start : start + block]])
    scores = vectors[rows] @ vectors.T
    scores[[0, 1, 2], rows] = -2
    assert (nearest.rows([]) == np.argsort(-scores, axis=1)[:, :5]).all()


def test_neighbours_by_named_vectors_are_what_search_finds_by_them() -> None:
    count, rows, weights = 300, np.array([0, 7, 299]), (1.2, 0.8)
    legs = [unit(RANDOM.normal(size=(count, dim))) for dim in (16, 24)]
    blocks = [(start, [leg[start : start + 64] for leg in legs]) for start in range(0, count, 64)]
    nearest = Nearest([leg[rows] for leg in legs], rows, count, 10, weights)
    for start, block in blocks:
        nearest.see(start, block)
    found = nearest.rows(blocks)
    for query, own in enumerate(rows):
        scores = [np.where(np.arange(count) == own, -2, leg @ leg[own]) for leg in legs]
        every = sorted({int(row) for each in scores for row in np.argsort(-each)[:CANDIDATES]})
        ids = [f"{row:03}" for row in every]
        asked = [ScoredLeg(ids, each[every], weight) for each, weight in zip(scores, weights, strict=True)]
        assert found[query].tolist() == [int(each.id) for each in fuse_legs(DEFAULT_FUSION, asked, top=10)]


def test_a_vector_that_is_not_finite_is_nobodys_neighbour_and_is_counted() -> None:
    vectors = unit(RANDOM.normal(size=(12, 8)))
    broken = vectors.copy()
    broken[3], broken[5] = np.nan, 0.0
    pair = LegPair(leg(vectors=vectors), leg(vectors=broken), whole=True, cosine_dim=8)
    found = measure(pair, keys(12), sample=12, neighbours=9, seed=0)
    assert found.unusable == 2
    assert found.cosines is not None
    assert np.flatnonzero(np.isnan(found.cosines)).tolist() == [3, 5]
    assert set(found.sample) == set(range(12)) - {3, 5}
    assert not np.isin([3, 5], found.nearest_b).any()


def test_the_same_seed_samples_the_same_texts() -> None:
    vectors = unit(RANDOM.normal(size=(50, 8)))
    pair = LegPair(leg(vectors=vectors), leg(vectors=vectors), whole=True, cosine_dim=8)
    samples = [measure(pair, keys(50), 10, 3, seed).sample.tolist() for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2]


def test_models_of_one_name_are_compared_and_all_models_together() -> None:
    a, b, other = leg("m"), leg("m"), leg("n")
    whole = leg("named(m + n)", method="concat")
    assert [(pair.a.name, pair.b.name, pair.whole) for pair in pair_legs([a, other], [b], whole, b)] == [
        ("m", "m", False),
        ("named(m + n)", "m", True),
    ]
    assert len(pair_legs([a], [b], a, b)) == 1  # all models together are the one model


def test_cosines_are_for_vectors_of_one_space_alone() -> None:
    def pair(a: Leg, b: Leg) -> LegPair:
        return pair_legs([], [], a, b)[0]

    assert pair(leg(), leg()).cosine_dim == 8
    assert "different models" in pair(leg("m"), leg("n")).why_no_cosines
    assert "different ways" in pair(leg(method="concat"), leg(method="weighted_average")).why_no_cosines
    assert pair(leg(dim=8), leg(dim=4)).cosine_dim == 4  # Matryoshka: the first dimensions are the same
    assert pair(leg(dim=8), leg(dim=4, digest="e")).cosine_dim is None
    (note,) = pair(leg(), leg(digest="e")).notes
    assert "may be another model" in note


@pytest.mark.parametrize(("worst", "low"), [(1.0, 0.999999), (0.99987, 0.9998), (0.93, 0.93), (0.2, 0.2), (-0.4, -1.0)])
def test_a_histogram_begins_at_a_round_number_below_the_worst(worst: float, low: float) -> None:
    assert _round_below(worst) == pytest.approx(low, abs=1e-9)
