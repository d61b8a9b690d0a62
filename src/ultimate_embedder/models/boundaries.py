"""Where a text may be cut: between sentences if possible, else between words, and never within a character."""

from __future__ import annotations

import unicodedata
from enum import IntEnum

CLOSING = "\"')]}»”’"  # may follow the end of a sentence
SENTENCE_ENDS = ".!?…"
FULL_WIDTH_ENDS = "。！？；"  # no space follows
LOOKED_BACK = 8  # characters
JOINER = "\u200d"
REGIONAL = range(0x1F1E6, 0x1F200)  # letters of flags, two each
SKIN_TONES = range(0x1F3FB, 0x1F400)
JAMO = range(0x1160, 0x1200)  # vowels and finals, that belong to the consonant before
MOST_REGIONAL = 256  # looked at, in a text of flags only
TAGS = range(0xE0020, 0xE0080)


class Boundary(IntEnum):
    """What is between two tokens; the higher, the better to cut there."""

    NONE = 0
    WORD = 1
    SENTENCE = 2


def boundary(text: str, left_end: int, right_start: int) -> Boundary:
    """What is between a token that ends at one character and the next, that starts at another."""
    before = text[max(0, left_end - LOOKED_BACK) : right_start]
    between = text[left_end : right_start + 1]
    last = before.rstrip().rstrip(CLOSING)[-1:]
    if last and last in FULL_WIDTH_ENDS:
        return Boundary.SENTENCE
    if not (before[-1:].isspace() or any(map(str.isspace, between))):
        return Boundary.NONE
    is_end = (last and last in SENTENCE_ENDS) or "\n" in between or before.endswith("\n")
    return Boundary.SENTENCE if is_end else Boundary.WORD


def splits_character(text: str, position: int) -> bool:
    """Whether a cut before this position would divide what a reader sees as one character."""
    if not 0 < position < len(text):
        return False
    before, after = text[position - 1], text[position]
    if before == "\r" and after == "\n":
        return True
    if JOINER in (before, after) or unicodedata.category(after) in ("Mn", "Mc", "Me"):
        return True
    code = ord(after)
    if code in SKIN_TONES or code in JAMO or code in TAGS:
        return True
    return code in REGIONAL and _regional_before(text, position) % 2 == 1


def _regional_before(text: str, position: int) -> int:
    start = position
    while start > max(0, position - MOST_REGIONAL) and ord(text[start - 1]) in REGIONAL:
        start -= 1
    return position - start
