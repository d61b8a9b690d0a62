"""How long and how much: pure functions of work, devices and rates."""

from __future__ import annotations

import pytest

from ultimate_embedder.history import PassRecord, StageRecord
from ultimate_embedder.planning import (
    NOTHING,
    Lane,
    PassLoad,
    PeakRates,
    Range,
    Speed,
    batch_seconds,
    cost,
    count_sessions,
    find_records,
    in_turn,
    pass_seconds,
    speed_of,
    stage_seconds,
    together,
)

SLOW = Speed({64: Range(100, 100), 512: Range(50, 50)}, "slow")
FAST = Speed({64: Range(300, 400)}, "fast", overhead=Range(1.0, 1.5))
HOUR = 3600.0


def record(seconds: float = 10.0, tokens: int = 1000, workers: int = 2, **values: object) -> PassRecord:
    """A pass whose workers computed nine tenths of the time."""
    fields: dict[str, object] = {
        "model": "m",
        "hardware": "h",
        "dtype": "float32",
        "runtime": "torch",
        "workers": workers,
        "seconds": seconds,
        "texts": 10,
        "tokens": tokens,
        "by_length": {64: (tokens, seconds * workers * 0.9)},
    }
    return PassRecord(**{**fields, **values})  # type: ignore[arg-type]


def test_a_pass_takes_its_tokens_by_the_rate_of_all_workers() -> None:
    load = PassLoad({64: 1000, 512: 500})
    alone = pass_seconds(load, [Lane(1, SLOW)])
    both = pass_seconds(load, [Lane(2, SLOW)])
    assert alone is not None
    assert both is not None
    assert (alone.seconds, alone.basis) == (Range(20, 20), "slow")
    assert both.seconds == Range(10, 10)


def test_devices_of_two_kinds_share_a_pass() -> None:
    found = pass_seconds(PassLoad({64: 1000}), [Lane(1, SLOW), Lane(1, FAST)])
    assert found is not None
    assert found.seconds.low == pytest.approx(1000 / 500)
    assert found.seconds.high == pytest.approx(1000 / 400 * 1.5)
    assert found.basis == "slow; fast"


def test_a_pass_is_never_faster_than_the_host() -> None:
    found = pass_seconds(PassLoad({64: 1000}, host_seconds=Range(60, 90)), [Lane(1, SLOW)])
    assert found is not None
    assert found.seconds == Range(60, 90)


def test_nothing_to_encode_takes_no_time_and_an_unknown_speed_is_unknown() -> None:
    empty = pass_seconds(PassLoad({}), [])
    assert empty is not None
    assert empty.seconds == NOTHING
    assert pass_seconds(PassLoad({64: 1}), [Lane(1, SLOW), Lane(1, Speed({}, ""))]) is None
    assert pass_seconds(PassLoad({64: 1}), []) is None


def test_a_length_that_was_not_measured_is_as_fast_as_the_nearest() -> None:
    assert SLOW.rate(16) == SLOW.rate(64) == Range(100, 100)
    assert SLOW.rate(4096) == Range(50, 50)


def test_passes_in_turn_and_together() -> None:
    loads = [PassLoad({64: 1000}), PassLoad({64: 500})]
    found = [each for load in loads if (each := pass_seconds(load, [Lane(1, SLOW)])) is not None]
    assert in_turn(found) == Range(15, 15)
    assert together(found) == Range(10, 10)


@pytest.mark.parametrize(
    ("total", "starting", "low", "high"),
    [
        (Range(1 * HOUR, 11 * HOUR), Range(0, 0), 1, 1),
        (Range(13 * HOUR, 30 * HOUR), Range(0, 0), 2, 3),
        (Range(24 * HOUR, 24 * HOUR), Range(1 * HOUR, 1 * HOUR), 3, 3),  # each session has eleven hours for the rest
    ],
)
def test_sessions_begin_with_starting(total: Range, starting: Range, low: int, high: int) -> None:
    sessions = count_sessions(total, starting, 12 * HOUR)
    assert sessions is not None
    assert (sessions.low, sessions.high) == (low, high)


def test_where_starting_takes_all_of_a_session_none_gets_anywhere() -> None:
    assert count_sessions(Range(HOUR, HOUR), Range(30, 90), 60) is None


def test_what_hours_cost() -> None:
    assert cost(Range(1800, 7200), 0.5) == Range(0.25, 1.0)


def test_a_roofline_is_a_range_of_assumed_shares() -> None:
    class Forward:
        calls = 10

        def seconds(self, flops_per_second: float, bytes_per_second: float, launch_seconds: float = 0.0) -> float:
            return 1e12 / flops_per_second + self.calls * launch_seconds

    found = batch_seconds(Forward(), PeakRates(flops=1e13, bandwidth=1e11))
    assert found.low == pytest.approx(0.1 / 0.45, rel=0.01)
    assert found.high == pytest.approx(0.1 / 0.30, rel=0.01)


def test_the_speed_of_earlier_passes_gives_their_time_back() -> None:
    passes = [record(10), record(11), record(12)]
    speed = speed_of(passes)
    found = pass_seconds(PassLoad({64: 1000}), [Lane(2, speed)])
    assert found is not None
    assert found.seconds.low < 10
    assert found.seconds.high > 12
    assert found.seconds.middle == pytest.approx(11, rel=0.05)
    assert "3 earlier passes" in found.basis


def test_one_pass_is_a_wider_range_than_several_and_an_outlier_widens_it() -> None:
    def width(*passes: PassRecord) -> float:
        overhead = speed_of(passes).overhead
        return overhead.high / overhead.low

    assert width(record(10)) > width(record(10), record(10))
    assert width(record(10), record(30)) > width(record(10), record(10))
    assert width(record(10), record(9, tokens=10)) == pytest.approx(width(record(10), record(10)), rel=0.3)


def test_records_of_as_many_workers_are_preferred() -> None:
    passes = [record(workers=2), record(workers=4), record(dtype="float16")]
    assert find_records(passes, "m", "h", "float32", "torch", 4) == passes[1:2]
    assert find_records(passes, "m", "h", "float32", "torch", 8) == passes[:2]
    assert find_records(passes, "m", "other", "float32", "torch", 2) == []


def test_a_stage_of_another_size_is_between_fixed_and_proportional() -> None:
    known = [StageRecord("export npy", "h", units=100, seconds=2.0)]
    same = stage_seconds(known, "export npy", "h", 100)
    larger = stage_seconds(known, "export npy", "h", 1000)
    assert same is not None
    assert larger is not None
    assert (same.seconds.low, same.seconds.high) == pytest.approx((1.5, 2.5))
    assert (larger.seconds.low, larger.seconds.high) == pytest.approx((1.5, 25))
    assert stage_seconds(known, "export npy", "elsewhere", 100) is None
    assert stage_seconds([*known, StageRecord("export npy", "h", 900, 9.0)], "export npy", "h", 1000) is not None
