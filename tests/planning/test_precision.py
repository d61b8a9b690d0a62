"""When fp16 is too narrow for a model."""

from __future__ import annotations

import pytest

from ultimate_embedder.planning import fp16_is_too_narrow


@pytest.mark.parametrize("unusable", [0, 1, 2])
def test_one_or_two_bad_texts_say_nothing(unusable: int) -> None:
    assert not fp16_is_too_narrow(before=0, now=32, unusable=unusable, texts=10_000)
    assert not fp16_is_too_narrow(before=0, now=2, unusable=unusable, texts=2)


def test_more_than_a_percent_of_the_first_texts_is_known_before_all_of_them_are_done() -> None:
    assert fp16_is_too_narrow(before=0, now=32, unusable=3, texts=10_000)


def test_the_share_is_of_all_texts_that_are_done() -> None:
    assert not fp16_is_too_narrow(before=968, now=32, unusable=10, texts=10_000)
    assert fp16_is_too_narrow(before=968, now=32, unusable=11, texts=10_000)


def test_a_first_batch_of_all_texts_decides_as_well() -> None:
    assert fp16_is_too_narrow(before=0, now=20, unusable=20, texts=20)


def test_a_pass_that_is_half_done_goes_on() -> None:
    assert fp16_is_too_narrow(before=5000, now=32, unusable=400, texts=10_000)
    assert not fp16_is_too_narrow(before=5001, now=32, unusable=400, texts=10_000)
