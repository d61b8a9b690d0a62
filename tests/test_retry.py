from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.clock import Clock
from ultimate_embedder.retry import RetryPolicy, Temporary, call_with_retries

SOON = RetryPolicy(tries=4, first_wait_s=1.0, longest_wait_s=10.0, total_s=300.0)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which calls are tried again; no test really waits."""
    clock = Clock()
    monkeypatch.setattr("ultimate_embedder.retry.time", clock)
    return clock


class Retries:
    """Remembers what `on_retry` was told."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.waits_s: list[float] = []
        self.reasons: list[str] = []

    def __call__(self, attempt: int, wait_s: float, reason: str) -> None:
        self.attempts.append(attempt)
        self.waits_s.append(wait_s)
        self.reasons.append(reason)


def fails(times: int) -> Callable[[], str]:
    left = iter(range(times))

    def call() -> str:
        if (number := next(left, None)) is not None:
            raise ConnectionError(f"failure {number}")
        return "done"

    return call


def passing(error: Exception) -> Temporary | None:
    return Temporary(str(error)) if isinstance(error, ConnectionError) else None


def test_a_call_that_works_is_made_once() -> None:
    retries = Retries()
    assert call_with_retries(fails(0), passing, retries, SOON) == "done"
    assert retries.attempts == []


def test_an_error_may_be_worth_fewer_tries_than_others() -> None:
    retries = Retries()
    with pytest.raises(ConnectionError, match="failure 1"):
        call_with_retries(fails(3), lambda error: Temporary(str(error), tries=2), retries, SOON)
    assert retries.attempts == [1]


def test_an_error_that_passes_is_tried_again() -> None:
    retries = Retries()
    assert call_with_retries(fails(3), passing, retries, SOON) == "done"
    assert retries.attempts == [1, 2, 3]
    assert retries.reasons == ["failure 0", "failure 1", "failure 2"]


def test_an_error_that_does_not_pass_is_raised_at_once() -> None:
    retries = Retries()

    def call() -> None:
        raise ValueError("wrong for good")

    with pytest.raises(ValueError, match="wrong for good"):
        call_with_retries(call, passing, retries, SOON)
    assert retries.attempts == []


def test_an_interruption_is_not_tried_again() -> None:
    def call() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_with_retries(call, lambda error: Temporary("never asked"), Retries(), SOON)


def test_the_last_error_is_raised_when_the_tries_are_used_up() -> None:
    retries = Retries()
    with pytest.raises(ConnectionError, match="failure 3"):
        call_with_retries(fails(99), passing, retries, SOON)
    assert retries.attempts == [1, 2, 3]


def test_waits_double_with_jitter_up_to_the_longest(clock: Clock) -> None:
    retries = Retries()
    policy = RetryPolicy(tries=7, first_wait_s=1.0, longest_wait_s=8.0, total_s=300.0)
    call_with_retries(fails(6), passing, retries, policy)
    for wait_s, full_s in zip(retries.waits_s, [1, 2, 4, 8, 8, 8], strict=True):
        assert full_s / 2 <= wait_s <= full_s
    assert clock.slept_s == retries.waits_s


def test_the_wait_that_the_other_side_asks_for_is_kept(clock: Clock) -> None:
    retries = Retries()
    call_with_retries(fails(2), lambda error: Temporary("busy", wait_s=70.0), retries, SOON)
    assert retries.waits_s == clock.slept_s == [70.0, 70.0]


def test_a_wait_of_zero_is_a_wait_that_was_asked_for(clock: Clock) -> None:
    retries = Retries()
    call_with_retries(fails(1), lambda error: Temporary("at once", wait_s=0.0), retries, SOON)
    assert retries.waits_s == clock.slept_s == [0.0]


def test_a_wait_beyond_the_total_is_not_begun(clock: Clock) -> None:
    retries = Retries()
    with pytest.raises(ConnectionError, match="failure 0"):
        call_with_retries(fails(1), lambda error: Temporary("busy", wait_s=301.0), retries, SOON)
    assert (retries.attempts, clock.slept_s) == ([], [])


def test_time_spent_in_calls_counts_towards_the_total(clock: Clock) -> None:
    def call() -> None:
        clock.advance(30)
        raise ConnectionError("slow")

    retries = Retries()
    with pytest.raises(ConnectionError, match="slow"):
        call_with_retries(call, passing, retries, RetryPolicy(tries=50, first_wait_s=1.0, total_s=70.0))
    assert retries.attempts == [1, 2]
