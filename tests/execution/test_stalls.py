from __future__ import annotations

import pytest

from tests.support.clock import Clock
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.execution.stalls import GRACE_S, Stall, StallWatch


class Named(CpuDevice):
    """One of several devices."""

    def __init__(self, name: str) -> None:
        super().__init__(workers=1)
        self.name = name


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("ultimate_embedder.execution.stalls.time", clock)
    return clock


def watch(reported: list[Stall], given_up: list[Stall], timeout_s: float | None = None) -> StallWatch:
    return StallWatch(reported.append, timeout_s, given_up.append)


def test_a_batch_is_a_stall_after_fifty_times_what_its_tokens_took_before(clock: Clock) -> None:
    reported: list[Stall] = []
    stalls, device = watch(reported, []), Named("card")
    first = stalls.begin(device, rows=10, longest=100)
    clock.advance(10)
    stalls.end(first)
    stalls.begin(device, rows=20, longest=100)
    clock.advance(50 * 20 - 1)
    stalls.look()
    assert reported == []
    clock.advance(1)
    stalls.look()
    stalls.look()
    (stall,) = reported
    assert (stall.device, stall.rows, stall.longest, stall.expected_seconds) == (device, 20, 100, 20)
    assert stall.seconds == 1000


def test_nothing_is_a_stall_before_two_minutes(clock: Clock) -> None:
    reported: list[Stall] = []
    stalls, device = watch(reported, []), Named("card")
    stalls.end(stalls.begin(device, rows=1, longest=8))
    stalls.begin(device, rows=1, longest=8)
    clock.advance(119)
    stalls.look()
    assert reported == []
    clock.advance(1)
    stalls.look()
    assert len(reported) == 1


def test_only_the_oldest_batch_of_a_device_is_reported_and_each_device_for_itself(clock: Clock) -> None:
    reported: list[Stall] = []
    stalls, one, two = watch(reported, []), Named("one"), Named("two")
    for device, rows in ((one, 1), (one, 2), (two, 3)):
        stalls.begin(device, rows, longest=8)
    clock.advance(10_000)
    stalls.look()
    assert [stall.rows for stall in reported] == [1, 3]


def test_a_timeout_gives_up_once_and_grants_the_others_some_time(clock: Clock) -> None:
    reported: list[Stall] = []
    given_up: list[Stall] = []
    stalls = watch(reported, given_up, timeout_s=60)
    stalls.begin(Named("card"), 1, 8)
    clock.advance(59)
    stalls.look()
    assert (reported, given_up) == ([], [])
    clock.advance(1)
    stalls.look()
    stalls.look()
    assert len(reported) == len(given_up) == 1
    assert not stalls.given_up
    clock.advance(10)
    assert stalls.given_up


def test_a_device_that_others_have_given_up_is_given_up_here_too(clock: Clock) -> None:
    shared, given_up = Named("card"), list[Stall]()
    stalls = StallWatch(given_up.append, 60, given_up.append, lambda: [shared])
    stalls.look()
    clock.advance(60)
    shared.hangs = True  # who waits for its lock has no batch in flight
    stalls.look()
    clock.advance(GRACE_S - 1)
    stalls.look()
    over = [stalls.given_up]
    clock.advance(1)
    over.append(stalls.given_up)
    assert over == [False, True]
    assert given_up == []


def test_what_is_no_batch_is_watched_too_and_teaches_no_pace(clock: Clock) -> None:
    reported: list[Stall] = []
    stalls, device = watch(reported, [], timeout_s=60), Named("card")
    with stalls.during(device):
        clock.advance(60)
        stalls.look()
    assert [(stall.what, stall.expected_seconds) for stall in reported] == [("moving the weights", 30.0)]
    clock.advance(1000)
    stalls.look()
    assert len(reported) == 1
