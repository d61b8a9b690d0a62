"""Locks are taken in one order, and a thread that breaks it is told so."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ultimate_embedder.locks import OrderedCondition, OrderedLock, Rank, check_lock_order

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def unchecked() -> Iterator[None]:
    check_lock_order(False)
    yield
    check_lock_order(True)


def test_locks_may_be_taken_by_rising_rank() -> None:
    feed, device = OrderedLock("feed", Rank.BATCH_QUEUE), OrderedLock("device", Rank.DEVICE)
    for _ in range(2):
        with feed, device:
            assert feed.locked()
            assert device.locked()
    assert not feed.locked()


def test_a_lock_out_of_order_is_refused_and_both_locks_are_named_with_their_place() -> None:
    feed, device = OrderedLock("feed", Rank.BATCH_QUEUE), OrderedLock("simulated:0", Rank.DEVICE)
    message = (
        r"feed \(rank BATCH_QUEUE 20\) is taken at .*test_locks.py:\d+ "
        r"while simulated:0 \(rank DEVICE 30\) is held since .*test_locks.py:\d+"
    )
    with device, pytest.raises(AssertionError, match=message):
        feed.acquire()
    assert not feed.locked()
    with feed:
        pass


@pytest.mark.parametrize("rank", Rank)
def test_two_locks_of_one_rank_are_not_held_together(rank: Rank) -> None:
    first, second = OrderedLock("first", rank), OrderedLock("second", rank)
    with first, pytest.raises(AssertionError, match=r"second .* while first"):
        second.acquire()


def test_a_lock_is_not_taken_twice_by_one_thread() -> None:
    lock = OrderedLock("worker", Rank.WORKER)
    with lock, pytest.raises(AssertionError, match=r"worker .* while worker"):
        lock.acquire()


def test_workers_are_locked_in_the_order_of_their_passes() -> None:
    companion, primary = OrderedLock("companion", Rank.WORKER, place=1), OrderedLock("primary", Rank.WORKER)
    with primary, companion:
        pass
    with companion, pytest.raises(AssertionError, match=r"primary .* while companion"):
        primary.acquire()


def test_what_another_thread_holds_does_not_count() -> None:
    feed, device = OrderedLock("feed", Rank.BATCH_QUEUE), OrderedLock("device", Rank.DEVICE)
    taken = threading.Event()

    def work() -> None:
        with feed:
            taken.set()

    with device:
        threading.Thread(target=work).start()
        assert taken.wait(5)


def test_a_thread_that_waits_for_a_condition_has_given_its_lock_back() -> None:
    leases, emit = OrderedCondition("leases", Rank.LEASES), OrderedLock("emit", Rank.EMIT)
    changed = []

    def change() -> None:
        with leases:
            changed.append(True)
            leases.notify_all()

    with leases:
        thread = threading.Thread(target=change)
        thread.start()
        while not changed:
            assert leases.wait(5)
        with emit:
            pass
    thread.join()
    assert not leases.locked()


def test_nobody_waits_for_a_condition_while_holding_another_lock() -> None:
    leases, emit = OrderedCondition("leases", Rank.LEASES), OrderedLock("emit", Rank.EMIT)
    with leases, emit, pytest.raises(AssertionError, match="while emit"):
        leases.wait(0)


@pytest.mark.usefixtures("unchecked")
def test_without_the_switch_a_lock_is_just_a_lock() -> None:
    feed, device = OrderedLock("feed", Rank.BATCH_QUEUE), OrderedLock("device", Rank.DEVICE)
    with device, feed:
        pass
    assert not feed.locked()


def test_a_lock_that_was_taken_before_the_switch_can_be_given_back(unchecked: None) -> None:
    lock = OrderedLock("feed", Rank.BATCH_QUEUE)
    with lock:
        check_lock_order(True)
    assert not lock.locked()


def test_every_lock_of_the_program_has_a_rank() -> None:
    plain = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"}
    for path in (ROOT / "src").rglob("*.py"):
        if path.name == "locks.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "threading":
                assert node.attr not in plain, f"{path}:{node.lineno}"


def test_the_document_lists_every_rank() -> None:
    text = (ROOT / "docs" / "concurrency.md").read_text("utf-8")
    listed = dict(re.findall(r"^\| (\d+) \| `(\w+)` \|", text, re.MULTILINE))
    assert listed == {str(rank.value): rank.name for rank in Rank}
