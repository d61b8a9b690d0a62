"""Where a text may be cut."""

from __future__ import annotations

import pytest

from ultimate_embedder.models.boundaries import Boundary, boundary, splits_character


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("One.", " Two", Boundary.SENTENCE),
        ('He said "no."', " Then", Boundary.SENTENCE),
        ("a heading\n", "and text", Boundary.SENTENCE),
        ("第一句。", "第二句", Boundary.SENTENCE),
        ("two", " words", Boundary.WORD),
        ("two ", "words", Boundary.WORD),
        ("on", "e", Boundary.NONE),
        ("3.", "14", Boundary.NONE),
    ],
)
def test_sentences_are_told_from_words_and_words_from_letters(left: str, right: str, expected: Boundary) -> None:
    assert boundary(left + right, len(left), len(left)) is expected


def test_white_space_between_two_tokens_is_seen() -> None:
    assert boundary("end.  Next", 4, 6) is Boundary.SENTENCE
    assert boundary("two  words", 3, 5) is Boundary.WORD


@pytest.mark.parametrize(
    "character",
    [
        "e\u0301",
        "👩\u200d👩\u200d👧",
        "👍\U0001f3fd",
        "🇩🇪",
        "\r\n",
        "\u1112\u1161\u11ab",
        "❤\ufe0f",
        "नि",
    ],
)
def test_what_a_reader_sees_as_one_character_is_not_divided(character: str) -> None:
    text = f"a{character}b"
    assert not splits_character(text, 1)
    assert all(splits_character(text, place) for place in range(2, 1 + len(character)))
    assert not splits_character(text, 1 + len(character))


def test_a_row_of_flags_is_cut_between_two_of_them() -> None:
    flags = "🇩🇪🇫🇷" * 100
    assert [splits_character(flags, place) for place in (2, 3, 4)] == [False, True, False]
