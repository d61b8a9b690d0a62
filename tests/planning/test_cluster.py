"""What limits a pass on several nodes: pure."""

from __future__ import annotations

import pytest

from ultimate_embedder.planning import Estimate, Range, cluster
from ultimate_embedder.planning.cluster import (
    ClusterLoad,
    ClusterShape,
    bottleneck,
    driver_vectors_per_s,
    limits_of,
    slowest,
    useful_nodes,
)

MILLION = ClusterLoad(texts=1_024_000, text_bytes=1_024_000_000, dim=384)
HOUR = Estimate(Range(3600.0, 3600.0), "measured")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "DRIVER_VECTORS_PER_S", {384: 20_000.0, 1024: 10_000.0})
    monkeypatch.setattr(cluster, "SHARED_VECTORS_PER_S", 200_000.0)


def seconds_of(nodes: int, load: ClusterLoad = MILLION, **how: bool) -> dict[str, Range]:
    return {limit.what: limit.seconds for limit in limits_of(HOUR, load, ClusterShape(nodes, **how))}


def test_encoding_is_divided_among_the_nodes() -> None:
    assert seconds_of(1)["nodes"] == HOUR.seconds
    assert seconds_of(10)["nodes"] == Range(360.0, 360.0)


def test_a_unit_is_not_divided() -> None:
    small = ClusterLoad(texts=1400, text_bytes=1_400_000, dim=384)
    assert (small.units(2), small.units(100), small.most_units) == (8, 44, 44)
    assert seconds_of(100, small)["nodes"].low == pytest.approx(3600 / 44)
    assert useful_nodes(HOUR.seconds, small.most_units, []) == 44


def test_what_is_not_measured_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "DRIVER_VECTORS_PER_S", {})
    assert "driver" not in seconds_of(4)
    assert driver_vectors_per_s(384) is None


def test_the_driver_becomes_the_bottleneck_with_many_nodes(measured: None) -> None:
    few, many = (limits_of(HOUR, MILLION, ClusterShape(nodes)) for nodes in (4, 100))
    assert bottleneck(few).what == "nodes"
    assert bottleneck(many).what == "driver"
    assert slowest(many).seconds.low == pytest.approx(51.2)
    assert useful_nodes(HOUR.seconds, MILLION.most_units, many) == 71


def test_with_a_shared_output_vectors_do_not_travel_and_the_driver_takes_more(measured: None) -> None:
    assert seconds_of(100, shared_output=True)["driver"].low == pytest.approx(5.12)
    assert MILLION.bytes_back(shared_output=True) == 1_024_000 * 17
    assert MILLION.bytes_back(shared_output=False) == 1_024_000 * (4 * 384 + 17)
    assert MILLION.bytes_out == 1_024_000_000 + 1_024_000 * 16


def test_rates_of_other_sizes_follow_from_two_that_were_measured(measured: None) -> None:
    assert driver_vectors_per_s(384) == 20_000.0
    assert driver_vectors_per_s(1024) == 10_000.0
    assert 10_000 < (driver_vectors_per_s(704) or 0) < 20_000
    assert (driver_vectors_per_s(1664) or 0) == pytest.approx(1 / 150e-6)
    assert driver_vectors_per_s(768, {384: 20_000.0}) == 20_000.0


def test_nothing_to_encode_takes_no_time() -> None:
    assert limits_of(HOUR, ClusterLoad(0, 0, 384), ClusterShape(4)) == []
    assert slowest([]).seconds == Range(0.0, 0.0)
