"""Cut a text that is too long for a model into overlapping segments that fit, each with prompt and special tokens.

A segment is a range of characters of the text, and is tokenised like any other text. Cuts are between sentences if one
ends near, else between words, else between tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.models.boundaries import Boundary, boundary, splits_character
from ultimate_embedder.models.encoder import Encoder
from ultimate_embedder.models.loaded import SegmentRows, TokenizedTexts
from ultimate_embedder.models.tokenize import HEAD_CHARACTERS, TokenSpans
from ultimate_embedder.types import Segment

OVERLAP_SHARE = 8  # by default segments share an eighth of their tokens with the next
SEARCHED_SHARE = 8  # a cut may be moved by an eighth of the tokens, to the end of a sentence or word
SPARE_SHARE = 16  # tokens left free where a word is cut: its parts may have more tokens than it has
BLOCK_CHARACTERS = 1 << 18  # tokenised at once, so that memory is bounded
CHECKED_SEGMENTS = 64  # tokenised at once
LONGEST_CHARACTER = 64  # code points; letters with more marks than that are divided
LEAST_TOKENS = 4  # of text in a segment


@dataclass(frozen=True)
class CutText:
    """The segments of a text, and the token ids of each."""

    segments: tuple[Segment, ...]
    rows: tuple[np.ndarray, ...]


class SegmentCutter:
    """Cuts texts for one model."""

    def __init__(self, encoder: Encoder, overlap: int | None = None) -> None:
        """`overlap`: tokens that two segments share, as far as words allow; an eighth of the segment if None."""
        tokenizer = encoder.tokenizer
        if not encoder.tokenizes:
            raise ModelError(
                f"{encoder.name} tokenises texts itself, so that it is not known where they must be cut. "
                "Use --overlong truncate, or cut the texts into smaller chunks."
            )
        self._tokenizer = tokenizer
        self._own_tokens = tokenizer.own_tokens()
        self._size = tokenizer.max_tokens - self._own_tokens
        """Tokens of text in a segment."""
        if self._size < LEAST_TOKENS:
            raise UsageError(
                f"{encoder.name}: prompt and special tokens take {self._own_tokens} of {tokenizer.max_tokens} tokens. "
                "Raise --max-tokens."
            )
        if overlap is not None and overlap > self._size // 2:
            raise UsageError(
                f"--overlap {overlap}: a segment for {encoder.name} has room for {self._size} tokens of text, and may "
                f"share half of them with the next. Give at most {self._size // 2}."
            )
        self._overlap = self._size // OVERLAP_SHARE if overlap is None else overlap

    @property
    def max_tokens(self) -> int:
        """The token limit of the model."""
        return self._tokenizer.max_tokens

    def overlong(self, texts: Sequence[str]) -> np.ndarray:
        """Which texts do not fit."""
        found = np.array([not (text.isascii() and len(text) <= self._size) for text in texts], bool)
        unsure = np.flatnonzero(found).tolist()  # a text of ASCII characters has at most one token for each
        if unsure:
            found[unsure] = self._tokenizer.tokenize([texts[number] for number in unsure]).overlong
        return found

    def cut(self, text: str) -> CutText:
        """The segments of a text that is too long; together they have all of it that is not white space."""
        kept: list[Segment] = []
        rows: list[np.ndarray] = []
        for segments in _groups(self._cut(text), CHECKED_SEGMENTS):
            for segment, row in self._fitting(text, segments):
                kept.append(segment)
                rows.append(row)
        if not kept:  # the tokenizer finds tokens, but not where they are
            kept, rows = [Segment(0, len(text))], self._tokenizer.token_ids([self._tokenizer.prompt + text])[0]
        return CutText(tuple(kept), tuple(rows))

    def in_segments(self, texts: Sequence[str], tokenized: TokenizedTexts) -> TokenizedTexts:
        """The same texts with every one that is too long in segments."""
        if not tokenized.overlong.any():
            return tokenized
        rows: list[np.ndarray] = []
        text_of_row: list[int] = []
        for number, (text, row) in enumerate(zip(texts, tokenized.rows, strict=True)):
            mine = self.cut(text).rows if tokenized.overlong[number] else (row,)
            rows.extend(mine)
            text_of_row.extend([number] * len(mine))
        lengths = np.array([len(row) for row in rows])
        weights = np.maximum(lengths - self._own_tokens, 1)
        segments = SegmentRows(np.array(text_of_row), weights, tokenized.lengths)
        return TokenizedTexts(rows, lengths, tokenized.over, segments)

    def _fitting(self, text: str, segments: Sequence[Segment]) -> Iterator[tuple[Segment, np.ndarray]]:
        """Segments with their token ids; one that does not fit after all is halved."""
        texts = [self._tokenizer.prompt + text[each.start : each.end] for each in segments]
        for segment, row, over in zip(segments, *self._tokenizer.token_ids(texts), strict=True):
            if over and segment.end - segment.start > 1:
                halves = [part for half in _halves(text, segment) for part in _not_blank(text, half)]
                yield from self._fitting(text, halves)
            else:
                yield segment, row

    def _cut(self, text: str) -> Iterator[Segment]:
        """Block by block, so that a tokenizer never sees more than one."""
        start, most = 0, max(BLOCK_CHARACTERS, self._size * HEAD_CHARACTERS)
        while start < len(text):
            stop = _block_end(text, start, most)
            spans = self._tokenizer.spans(text[start:stop])
            block = _Block(text, TokenSpans(spans.starts + start, spans.ends + start, spans.counts), start, stop)
            start = yield from block.cut(self._size, self._overlap)


class _Block:
    """A part of a text, and where its tokens are."""

    def __init__(self, text: str, spans: TokenSpans, start: int, stop: int) -> None:
        self._text = text
        self._spans = spans
        self._start = start
        self._stop = stop
        self._before = np.concatenate([[0], np.cumsum(spans.counts)])
        """Tokens before each span, and of all."""

    def cut(self, size: int, overlap: int) -> Generator[Segment, None, int]:
        """Yield segments of at most `size` tokens; returns where the next block has to begin."""
        first, count, goes_on = 0, len(self._spans.counts), self._stop < len(self._text)
        while first < count:
            left = int(self._before[-1] - self._before[first])
            if goes_on and left < size and first:
                return int(self._spans.starts[first])  # the next block has the rest, and what follows it
            wanted = size if goes_on else _even_size(left, size, overlap)
            end = count if left <= size else self._end(first, wanted)
            yield from _not_blank(self._text, self._segment(first, end))
            if end == count:
                break
            first = self._next(first, end, overlap)
        return self._stop

    def _segment(self, first: int, end: int) -> Segment:
        """From one span to before another, with characters between that are no tokens."""
        start = int(self._spans.starts[first]) if first else self._start
        stop = int(self._spans.starts[end]) if end < len(self._spans.counts) else self._stop
        return Segment(start, stop)

    def _end(self, first: int, size: int) -> int:
        """The span before which a segment ends."""
        most = max(first + 1, int(np.searchsorted(self._before, self._before[first] + size, "right")) - 1)
        least = int(np.searchsorted(self._before, self._before[first] + size - size // SEARCHED_SHARE))
        found = self._best(range(most, max(least, first), -1))
        if found is not None:
            return found
        spare = self._before[first] + size - -(-size // SPARE_SHARE)
        most = max(first + 1, int(np.searchsorted(self._before, spare, "right")) - 1)
        return next((at for at in range(most, first, -1) if not self._splits_character(at)), most)

    def _next(self, first: int, end: int, overlap: int) -> int:
        """The span with which the next segment begins: `overlap` tokens before the end of the one before."""
        earliest = int(np.searchsorted(self._before, self._before[end] - overlap))
        if earliest <= first:
            return end
        half = int(np.searchsorted(self._before, self._before[end] - overlap // 2))
        found = self._best(range(earliest, half + 1)) if overlap else None
        if found is not None:
            return found
        return next((at for at in range(earliest, end) if not self._splits_character(at)), end)

    def _best(self, places: Iterable[int]) -> int | None:
        """The first place between sentences, else the first between words."""
        word = None
        for at in places:
            found = self._boundary(at)
            if found is Boundary.SENTENCE:
                return at
            if word is None and found is Boundary.WORD:
                word = at
        return word

    def _boundary(self, at: int) -> Boundary:
        if not 0 < at < len(self._spans.counts):
            return Boundary.NONE
        left, right = int(self._spans.ends[at - 1]), int(self._spans.starts[at])
        found = boundary(self._text, left, right)
        return Boundary.NONE if found and splits_character(self._text, right) else found

    def _splits_character(self, at: int) -> bool:
        return at < len(self._spans.counts) and splits_character(self._text, int(self._spans.starts[at]))


def _even_size(left: int, size: int, overlap: int) -> int:
    """Tokens of each segment if all that are left are about as long: none is a short rest."""
    segments = -(-(left - overlap) // (size - overlap))
    even = -(-(left + (segments - 1) * overlap) // max(1, segments))
    return min(size, even + size // (2 * SEARCHED_SHARE))  # cuts are moved to the left


def _block_end(text: str, start: int, most: int) -> int:
    """Where a block ends: after a space, if there is one in its second half."""
    if start + most >= len(text):
        return len(text)
    space = text.rfind(" ", start + most // 2, start + most)
    return space + 1 if space > start else _between_characters(text, start + most)


def _not_blank(text: str, segment: Segment) -> Iterator[Segment]:
    """The segment without white space at its ends; nothing if it is all white space."""
    piece = text[segment.start : segment.end]
    if found := piece.strip():
        start = segment.start + len(piece) - len(piece.lstrip())
        yield Segment(start, start + len(found))


def _halves(text: str, segment: Segment) -> tuple[Segment, Segment]:
    middle = (segment.start + segment.end) // 2
    space = text.rfind(" ", (segment.start + middle) // 2, middle)
    cut = space + 1 if space >= 0 else _between_characters(text, middle, segment.start)
    return Segment(segment.start, cut), Segment(cut, segment.end)


def _between_characters(text: str, position: int, after: int = 0) -> int:
    """The last place up to a position where no character is divided; the position itself if there is none near."""
    places = range(position, max(after, position - LONGEST_CHARACTER), -1)
    return next((place for place in places if not splits_character(text, place)), position)


def _groups(items: Iterable[Segment], most: int) -> Iterator[list[Segment]]:
    group: list[Segment] = []
    for item in items:
        group.append(item)
        if len(group) == most:
            yield group
            group = []
    if group:
        yield group
