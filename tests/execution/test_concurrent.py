"""Jobs that run at the same time: they end together, and those that will not come back are left alone."""

from __future__ import annotations

import sys
import threading

import pytest

from ultimate_embedder.execution.concurrent import SWITCH_INTERVAL_S, quick_switching, run_together
from ultimate_embedder.stop import has_abandoned_threads


def test_the_first_error_is_raised_and_the_others_are_asked_to_stop() -> None:
    stopped = threading.Event()

    def fails() -> None:
        raise ValueError("first")

    def fails_later() -> None:
        stopped.wait()
        raise KeyError("second")

    with pytest.raises(ValueError, match="first"):
        run_together([fails_later, fails], stopped.set)
    assert stopped.is_set()


def test_a_job_that_hangs_is_abandoned_when_it_is_given_up() -> None:
    released, stopped = threading.Event(), threading.Event()
    assert not run_together([released.wait, lambda: None], stopped.set, given_up=lambda: True)  # type: ignore[list-item]
    assert stopped.is_set()
    assert has_abandoned_threads()
    released.set()


def test_all_jobs_are_waited_for_otherwise() -> None:
    done: list[int] = []
    assert run_together([lambda: done.append(1), lambda: done.append(2)], lambda: None, given_up=lambda: False)
    assert sorted(done) == [1, 2]


def test_threads_switch_quickly_only_while_cards_work() -> None:
    before = sys.getswitchinterval()
    with quick_switching():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() == before
