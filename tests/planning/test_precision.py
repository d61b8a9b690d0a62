"""When fp16 is too narrow for a model."""

from __future__ import annotations

import pytest

from ultimate_embedder.planning import fp16_is_too_narrow


@pytest.mark.parametrize("unusable", [0, 1, 2])
def test_one_or_two_bad_texts_say_nothing(unusable: int) -> None:
    assert not fp16_is_too_narrow(unusable, begun=256, done=0, texts=10_000)
    assert not fp16_is_too_narrow(unusable, begun=2, done=0, texts=2)


def test_more_than_a_percent_of_the_first_texts_is_known_before_all_of_them_are_done() -> None:
    assert fp16_is_too_narrow(3, begun=256, done=0, texts=10_000)


def test_a_window_whose_longest_texts_are_bad_is_judged_as_a_whole() -> None:
    assert not fp16_is_too_narrow(10, begun=1024, done=300, texts=10_000)
    assert fp16_is_too_narrow(11, begun=1024, done=300, texts=10_000)


def test_few_texts_that_are_all_bad_are_enough() -> None:
    assert fp16_is_too_narrow(20, begun=20, done=0, texts=20)


def test_a_pass_that_is_half_done_goes_on() -> None:
    assert fp16_is_too_narrow(400, begun=8192, done=5000, texts=10_000)
    assert not fp16_is_too_narrow(400, begun=8192, done=5001, texts=10_000)
