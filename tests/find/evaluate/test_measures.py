"""Measures and statistics of small examples whose values were computed by hand."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np
import pytest

from ultimate_embedder.errors import UsageError
from ultimate_embedder.find.evaluate.measures import MEASURES, Relevant, measure_rankings, perfect_order
from ultimate_embedder.find.evaluate.statistics import bootstrap_intervals, compare, holm, randomisation_test


def test_measures_are_those_computed_by_hand() -> None:
    relevant = [Relevant({0: 3, 1: 1, 7: 2}), Relevant({4: 1}, missing=(1,))]
    found = measure_rankings([np.array([5, 0, 6, 1]), np.array([4, 0])], relevant)
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    first = [(3 / math.log2(3) + 1 / math.log2(5)) / ideal, 2 / 3, 1 / 2, (1 / 2 + 2 / 4) / 3]
    second = [1 / (1 + 1 / math.log2(3)), 1 / 2, 1.0, 1 / 2]  # a document that is not there is never found
    assert MEASURES == ("ndcg@10", "recall@100", "mrr@10", "map")
    assert found == pytest.approx(np.array([first, second]))


def test_what_is_beyond_the_first_ten_counts_for_recall_and_map_only() -> None:
    ranking = np.arange(150)
    assert measure_rankings([ranking], [Relevant({10: 1})])[0] == pytest.approx([0, 1, 0, 1 / 11])
    assert measure_rankings([ranking], [Relevant({100: 1})])[0] == pytest.approx([0, 0, 0, 0])
    assert not measure_rankings([np.array([], int)], [Relevant({10: 1})]).any()


def test_a_perfect_order_is_that_of_the_grades_and_only_of_the_candidates() -> None:
    ranking = np.array([5, 0, 6, 1])
    assert perfect_order(ranking, Relevant({0: 3, 1: 1, 6: 2}), 3).tolist() == [6 - 6, 6, 5, 1]


def test_the_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "ir_measures":
            raise ImportError("No module named 'ir_measures'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'ultimate-embedder\[evaluate\]'"):
        measure_rankings([np.array([0])], [Relevant({0: 1})])


def test_a_bootstrap_interval_has_the_width_that_theory_gives() -> None:
    values = np.random.default_rng(1).normal(0.5, 0.2, (400, 1))
    (interval,) = bootstrap_intervals(values, seed=0)
    half = 1.96 * values.std() / math.sqrt(400)
    assert interval.low == pytest.approx(values.mean() - half, abs=0.002)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.002)
    assert bootstrap_intervals(values, seed=0) == [interval]


def test_few_queries_get_the_exact_p_value() -> None:
    assert randomisation_test(np.ones((5, 1)), seed=0) == [2 / 2**5]
    assert randomisation_test(np.zeros((5, 1)), seed=0) == [1.0]


def test_p_values_of_pure_chance_are_spread_evenly() -> None:
    noise = np.random.default_rng(2).normal(0, 1, (60, 300))
    p_values = np.array(randomisation_test(noise, seed=0))
    assert 0.02 < (p_values < 0.05).mean() < 0.09
    assert 0.4 < (p_values < 0.5).mean() < 0.6


def test_the_correction_of_holm_is_that_of_the_textbook() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_a_difference_counts_better_worse_and_equal_queries() -> None:
    base = np.array([0.1, 0.5, 0.5, 0.9])
    (found,) = compare(np.array([[0.3], [0.5], [0.4], [1.0]]), base, seed=0)
    assert (found.better, found.worse, found.equal) == (2, 1, 1)
    assert found.mean == pytest.approx(0.05)
    assert found.p_corrected is None
