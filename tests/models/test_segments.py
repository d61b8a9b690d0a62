"""Texts that are too long are cut into segments that fit, and nothing of them is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import tiny_model
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.models import Encoder, SegmentCutter, load_encoder, resolve_model, segments
from ultimate_embedder.models.boundaries import splits_character

LIMIT = 64
SENTENCE = "The wing is heated. "


@cache
def encoder(name: str = "") -> Encoder:
    """A model with a token for every byte, or the real one."""
    path = name or str(tiny_model("bert", max_tokens=LIMIT, prompts=True))
    return load_encoder(resolve_model(path), "float32", "cpu")


def pieces(text: str, cutter: SegmentCutter) -> list[str]:
    return [text[each.start : each.end] for each in cutter.cut(text).segments]


def lost(text: str, cutter: SegmentCutter) -> str:
    """Characters that are in no segment, without white space."""
    covered = np.zeros(len(text), bool)
    for each in cutter.cut(text).segments:
        covered[each.start : each.end] = True
    return "".join(character for character, kept in zip(text, covered, strict=True) if not kept).strip()


TEXTS = {
    "sentences": SENTENCE * 100,
    "one word": "x" * 5000,
    "emoji": "👩\u200d👩\u200d👧👍\U0001f3fd🇩🇪" * 80,
    "combining characters": "e\u0301" * 500,
    "NUL bytes": "a\0b \0" * 300,
    "white space": f"{' ' * 3000}{SENTENCE * 10}{' ' * 3000}",
    "no spaces": "空气动力学研究翼型表面的边界层流动。" * 40,
    "lines": "a short line\n" * 100,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_segments_fit_with_prompt_and_special_tokens_and_cover_the_text(text: str) -> None:
    cutter = SegmentCutter(encoder())
    cut = cutter.cut(text)
    assert len(cut.segments) > 1
    assert not lost(text, cutter)
    alone = encoder().tokenize([text[each.start : each.end] for each in cut.segments])
    assert not alone.overlong.any()
    assert all(np.array_equal(row, other) for row, other in zip(cut.rows, alone.rows, strict=True))
    assert not any(splits_character(text, place) for each in cut.segments for place in (each.start, each.end))
    assert all(piece == piece.strip() != "" for piece in pieces(text, cutter))


def test_a_letter_with_thousands_of_marks_is_divided_like_other_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "BLOCK_CHARACTERS", 300)
    monkeypatch.setattr(segments, "HEAD_CHARACTERS", 4)
    text = "a" + "\u0301" * 5000
    cutter = SegmentCutter(encoder())
    assert not lost(text, cutter)
    assert len(cutter.cut(text).segments) < 5000 * 2 // LIMIT * 2


def test_cuts_are_between_sentences_where_one_ends_near_the_limit() -> None:
    found = pieces(SENTENCE * 100, SegmentCutter(encoder(str(tiny_model("bert", max_tokens=512)))))
    assert len(found) > 3
    assert all(piece.startswith("The") and piece.endswith("heated.") for piece in found)


def test_segments_share_as_many_tokens_as_was_asked_for_but_never_part_of_a_word() -> None:
    text = " ".join(f"word{number:03}" for number in range(200))
    none = SegmentCutter(encoder(), overlap=0).cut(text).segments
    assert all(after.start > before.end for before, after in itertools.pairwise(none))
    some = SegmentCutter(encoder(), overlap=20).cut(text).segments
    shared = [before.end - after.start for before, after in itertools.pairwise(some)]
    assert all(8 <= each <= 20 for each in shared)
    assert all(text[each.start : each.start + 4] == "word" for each in some)


def test_no_segment_is_a_short_rest() -> None:
    for words in range(30, 60):
        lengths = [len(piece) for piece in pieces("a word or " * words, SegmentCutter(encoder()))]
        assert min(lengths) > max(lengths) // 2


def test_a_long_text_is_tokenised_in_blocks_with_the_same_care(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "BLOCK_CHARACTERS", 300)
    monkeypatch.setattr(segments, "HEAD_CHARACTERS", 4)
    cutter = SegmentCutter(encoder())
    text = " ".join(f"Sentence {number} is here." for number in range(400))
    assert not lost(text, cutter)
    found = cutter.cut(text).segments
    assert all(after.start < before.end for before, after in itertools.pairwise(found))
    assert not lost("x" * 5000, cutter)


def test_a_tokenizer_that_does_not_say_where_tokens_are_is_asked_word_by_word() -> None:
    slow = load_encoder(resolve_model(str(tiny_model("bert", max_tokens=LIMIT, prompts=True))), "float32", "cpu")
    slow.tokenizer._tokenizer = Slow(slow.tokenizer._tokenizer)
    for text in (SENTENCE * 100, "x" * 5000, "空气动力学。" * 90):
        cut = SegmentCutter(slow).cut(text)
        assert not lost(text, SegmentCutter(slow))
        assert max(map(len, cut.rows)) <= LIMIT


class Slow:
    """A tokenizer without offsets, as those written in Python are."""

    is_fast = False

    def __init__(self, fast: Any) -> None:
        self._fast = fast

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fast, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        assert "return_offsets_mapping" not in options
        ids = self._fast(*args, **options)["input_ids"]

        class Encoded(dict[str, Any]):
            is_fast = False

        return Encoded(input_ids=ids)


def test_a_model_that_tokenises_itself_is_refused_in_words() -> None:
    itself: Any = SimpleNamespace(name="own", tokenizes=False, tokenizer=None)
    with pytest.raises(ModelError, match=r"own tokenises texts itself.*--overlong truncate"):
        SegmentCutter(itself)


def test_an_overlap_of_more_than_half_a_segment_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match=r"--overlap 60: .* room for 53 tokens.*Give at most 26"):
        SegmentCutter(encoder(), overlap=60)


@pytest.mark.parametrize("max_tokens", [11, 13])
def test_a_prompt_that_leaves_no_room_is_refused_in_words(max_tokens: int) -> None:
    path = str(tiny_model("bert", max_tokens=LIMIT, prompts=True))
    small = load_encoder(resolve_model(path), "float32", "cpu", max_tokens)
    with pytest.raises(UsageError, match="prompt and special tokens take 11 of"):
        SegmentCutter(small)


def test_only_texts_that_are_too_long_are_put_into_segments() -> None:
    texts = ["short", SENTENCE * 20, "also short"]
    tokenized = encoder().tokenize(texts)
    cut = SegmentCutter(encoder()).in_segments(texts, tokenized)
    assert cut.segments is not None
    assert cut.segments.rows_per_text.tolist()[::2] == [1, 1]
    assert np.array_equal(cut.rows[0], tokenized.rows[0])
    assert np.array_equal(cut.text_tokens, tokenized.text_tokens)
    assert (cut.segments.weights == cut.lengths - 11).all()
    assert SegmentCutter(encoder()).in_segments(["short"], encoder().tokenize(["short"])).segments is None


@pytest.mark.parametrize("count", [1, 30, 2000])
def test_tokens_beyond_the_limit_are_counted_also_where_only_the_beginning_is_tokenised(count: int) -> None:
    text = "word " * count
    tokens = len("passage: ") + len(text) + 2
    assert encoder().tokenize([text]).text_tokens.tolist() == [tokens]


def test_a_text_of_short_ascii_characters_is_not_tokenised_to_know_that_it_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cutter = SegmentCutter(encoder())
    tokenize: Callable[..., Any] = encoder().tokenizer.tokenize
    seen: list[str] = []

    def watched(texts: list[str]) -> Any:
        seen.extend(texts)
        return tokenize(texts)

    monkeypatch.setattr(encoder().tokenizer, "tokenize", watched)
    assert cutter.overlong(["short", "x" * 53, "x" * 54, "é" * 30]).tolist() == [False, False, True, True]
    assert seen == ["x" * 54, "é" * 30]
