from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.clock import HANG_S
from ultimate_embedder.execution.prefetch import prefetch


def test_items_come_in_order() -> None:
    assert list(prefetch(range(100), depth=3)) == list(range(100))


def test_an_error_comes_out_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    got: list[int] = []
    with pytest.raises(ValueError, match="no more"):
        got.extend(prefetch(items()))
    assert got == [1]


def test_the_producer_works_while_the_reader_does() -> None:
    produced = [threading.Event() for _ in range(3)]

    def items() -> Iterator[int]:
        for number, event in enumerate(produced):
            event.set()
            yield number

    for number in prefetch(items()):
        assert produced[min(number + 1, 2)].wait(HANG_S)


def test_a_reader_that_stops_early_leaves_no_thread() -> None:
    before = threading.active_count()
    for _ in prefetch(iter(range(10**9))):
        break
    assert threading.active_count() == before
