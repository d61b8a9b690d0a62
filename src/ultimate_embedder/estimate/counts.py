"""Count what a pass has to do, with the code that does it: the same tokens, the same windows, the same batches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.batching import Batch, BatchLimits, length_bucket
from ultimate_embedder.execution import TableTexts, Window, cutter_for, tokenize_windows
from ultimate_embedder.models import Encoder, padded_length
from ultimate_embedder.planned import PlannedLength
from ultimate_embedder.planning import BatchShape, PassPlan, Rows

Texts = tuple[np.ndarray, list[str]]
"""Keys and texts that are tokenised together."""
Tell = Callable[[int], None]
"""Told how many texts were counted."""


@dataclass(frozen=True)
class PassCounts:
    """The texts of a pass that need a vector, in tokens and in batches."""

    texts: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    shapes: tuple[BatchShape, ...] = ()
    padded_by_length: tuple[tuple[int, int], ...] = ()
    """Padded tokens by the power of two of the batch's length."""
    truncated: int = 0
    tokens_lost: int = 0
    text_tokens: int = 0
    """Of the texts, before truncation."""
    longest_tokens: int = 0
    lengths: tuple[PlannedLength, ...] = ()
    tokenize_seconds: float = 0.0
    text_bytes: int = 0
    """Of the texts, in UTF-8: what would travel to nodes."""

    @property
    def batches(self) -> int:
        """Forwards, unless memory makes more of them."""
        return sum(shape.count for shape in self.shapes)

    @property
    def largest_rows(self) -> int:
        """Rows of the largest batch."""
        return max((shape.rows for shape in self.shapes), default=0)

    @property
    def largest_tokens(self) -> int:
        """Padded tokens of the largest batch."""
        return max((shape.rows * shape.length for shape in self.shapes), default=0)


def count_pass(
    texts: TableTexts, rows: Rows, encoder: Encoder, plan: PassPlan, how: BatchCutting, tell: Tell
) -> PassCounts:
    """Tokenise all texts of a pass, and cut them into batches."""
    counter = _Counter(how, pools=plan.identity.overlong == "pool")
    windows = counter.weighed(texts.read(rows))
    for window in tokenize_windows(windows, encoder, cutter=cutter_for(encoder, plan.identity)):
        counter.add(window)
        tell(counter.texts)
    return counter.counts()


@dataclass(frozen=True)
class BatchCutting:
    """How the windows of a pass become batches."""

    limits: BatchLimits
    on_card: bool
    packs: bool
    """Whether rows of several lengths are laid end to end."""


class _Counter:
    def __init__(self, how: BatchCutting, *, pools: bool) -> None:
        self._how = how
        self._pools = pools
        self.texts = 0
        self._tokens = self._padded = self._truncated = self._lost = self._text_tokens = self._longest = 0
        self._shapes: Counter[tuple[int, int, bool]] = Counter()
        self._by_length: Counter[int] = Counter()
        self._texts_of: Counter[int] = Counter()
        self._tokens_of: Counter[int] = Counter()
        self._seconds = 0.0
        self._text_bytes = 0

    def weighed(self, windows: Iterable[Texts]) -> Iterator[Texts]:
        """The same texts; how large they are is counted."""
        for keys, texts in windows:
            self._text_bytes += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
            yield keys, texts

    def add(self, window: Window) -> None:
        texts = window.texts
        self.texts += len(window.keys)
        self._seconds += window.seconds
        self._tokens += int(texts.lengths.sum())
        whole = texts.text_tokens
        self._text_tokens += int(whole.sum())
        self._longest = max(self._longest, int(whole.max()))
        if not self._pools:
            self._truncated += int(texts.overlong.sum())
            self._lost += int(texts.over.sum())
        for tokens in whole.tolist():
            self._texts_of[length_bucket(tokens)] += 1
            self._tokens_of[length_bucket(tokens)] += tokens
        for batch in self._how.limits.cut(texts.lengths, window.row_keys):
            self._add_batch(batch, texts.lengths[batch.rows])

    def _add_batch(self, batch: Batch, lengths: np.ndarray) -> None:
        uniform = bool(lengths.min() == lengths.max())
        padded = padded_length(lengths, on_card=self._how.on_card)
        self._shapes[len(lengths), padded, uniform] += 1
        tokens = int(lengths.sum()) if self._how.packs else padded * len(lengths)
        self._padded += tokens
        self._by_length[length_bucket(batch.longest)] += tokens

    def counts(self) -> PassCounts:
        return PassCounts(
            texts=self.texts,
            tokens=self._tokens,
            padded_tokens=self._padded,
            shapes=tuple(BatchShape(*shape, count) for shape, count in sorted(self._shapes.items())),
            padded_by_length=tuple(sorted(self._by_length.items())),
            truncated=self._truncated,
            tokens_lost=self._lost,
            text_tokens=self._text_tokens,
            longest_tokens=self._longest,
            lengths=tuple(self._histogram()),
            tokenize_seconds=self._seconds,
            text_bytes=self._text_bytes,
        )

    def _histogram(self) -> Iterator[PlannedLength]:
        for up_to, texts in sorted(self._texts_of.items()):
            yield PlannedLength(up_to=up_to, texts=texts, tokens=self._tokens_of[up_to])


class TellNowAndThen:
    """Passes a number on, not more often than every half second."""

    def __init__(self, tell: Tell, every_s: float = 0.5) -> None:
        self._tell = tell
        self._every_s = every_s
        self._next = time.monotonic() + every_s

    def __call__(self, number: int) -> None:
        """Tell it, if it is time."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every_s
            self._tell(number)
