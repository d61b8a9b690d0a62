from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

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
    produced = []

    def items() -> Iterator[int]:
        for number in range(3):
            produced.append(number)
            yield number

    for number in prefetch(items()):
        time.sleep(0.05)
        assert max(produced) >= min(number + 1, 2)


def test_a_reader_that_stops_early_leaves_no_thread() -> None:
    before = threading.active_count()
    for _ in prefetch(iter(range(10**9))):
        break
    assert threading.active_count() == before
