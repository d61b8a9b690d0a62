"""Rejected records are grouped by reason."""

from __future__ import annotations

from ultimate_embedder.report.rejections import MOST_GROUPS, RejectionGroups, as_group, in_words
from ultimate_embedder.types import Rejected


def said(*rejected: Rejected) -> list[str]:
    groups = RejectionGroups()
    for each in rejected:
        groups.add(as_group(each))
    return [in_words(group) for group in groups.listed]


def test_equal_reasons_are_one_line_with_the_first_place_and_the_advice() -> None:
    reason = "no text field (keys: words, n). Try --text-field words"
    many = [Rejected("a.jsonl", position, reason) for position in range(3000)]
    assert said(*many) == [
        "3,000 x no text field (keys: words, n), first at a.jsonl:1. Try --text-field words",
    ]


def test_reasons_that_differ_in_numbers_are_one() -> None:
    one = Rejected("a.jsonl", 6, "line 7 is not valid JSON (Expecting value at column 1)")
    other = Rejected("a.jsonl", 1208, "line 1,209 is not valid JSON (Expecting value at column 30)")
    assert said(one, other, other) == ["3 x line N is not valid JSON (Expecting value at column N), first at a.jsonl:7"]


def test_a_single_record_is_named_by_its_place() -> None:
    assert said(
        Rejected("a_chunks.json", 4, "the text is empty"),
        Rejected("b.parquet", None, "no text field (columns: a). Try --text-field a"),
        Rejected("c.jsonl.gz", 0, "the text is null, not a string"),
    ) == [
        "a_chunks.json record 4: the text is empty",
        "b.parquet: no text field (columns: a). Try --text-field a",
        "c.jsonl.gz:1: the text is null, not a string",
    ]


def test_ever_new_reasons_do_not_fill_memory() -> None:
    words = ["".join("abcdefghij"[int(digit)] for digit in str(number)) for number in range(3 * MOST_GROUPS)]
    assert len(said(*(Rejected("a.jsonl", 0, f"no text field (keys: {word})") for word in words))) == MOST_GROUPS
