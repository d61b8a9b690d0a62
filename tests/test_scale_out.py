"""The simulation of many cards: its limits are those that can be computed by hand, and docs/scale.md has its tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import scale_out
from benchmarks.scale_out import UNIT_TEXTS, Measured, Setup, make_setup, read_measured, simulate, tables

from ultimate_embedder import planning
from ultimate_embedder.execution.cluster import dispatch

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scale.md"


def test_where_nodes_are_slow_they_are_the_limit() -> None:
    found = simulate(Setup(nodes=4, compute_s=1.0, out_s=0.001, back_s=0.001, store_s=0.01))
    assert found.bottleneck == "nodes"
    assert found.texts_per_s == pytest.approx(4 * UNIT_TEXTS, rel=0.05)


def test_where_the_driver_is_slow_it_is_the_limit() -> None:
    found = simulate(Setup(nodes=50, compute_s=1.0, out_s=0.001, back_s=0.001, store_s=0.1))
    assert found.bottleneck == "driver"
    assert found.texts_per_s == pytest.approx(10 * UNIT_TEXTS, rel=0.02)


def test_nothing_is_computed_from_figures_that_are_missing() -> None:
    assert make_setup(100, 384, Measured()) is None
    assert scale_out.UNKNOWN in tables(Measured())


def test_figures_are_those_of_the_program() -> None:
    assert (UNIT_TEXTS, scale_out.IN_FLIGHT) == (planning.UNIT_TEXTS, dispatch.IN_FLIGHT)


def test_the_page_has_the_figures_that_were_measured() -> None:
    page = PAGE.read_text("utf-8")
    for row in scale_out._measured_rows(read_measured()):
        assert f"| {' | '.join(row)} |" in page, "run python benchmarks/scale_out.py --write"
