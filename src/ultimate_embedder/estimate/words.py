"""What BM25 takes: the words of all texts that have no counts yet, counted as a run counts them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ultimate_embedder.chunks import ChunkTable
from ultimate_embedder.config import RunConfig
from ultimate_embedder.estimate.stored import find_stored
from ultimate_embedder.execution import TableTexts, first_occurrences
from ultimate_embedder.models import WordCounter
from ultimate_embedder.planned import PlannedWords
from ultimate_embedder.planning import PassPlan, Rows
from ultimate_embedder.vectors import fingerprint

VALUE_BYTES = 8  # index and value
ROW_BYTES = 25  # of the store: key, where its words begin (twice), and whether it was truncated


@dataclass(frozen=True)
class CountedWords:
    """The counts of a collection, and how long counting took here."""

    planned: PlannedWords
    seconds: float
    notes: tuple[str, ...] = ()

    def sparse_bytes(self, points: int) -> int | None:
        """Indices and values of so many points; None where no text was counted."""
        texts = self.planned.new_texts
        return round(self.planned.values / texts * points) * VALUE_BYTES if texts else None

    @property
    def store_bytes(self) -> int:
        """What the store takes for new texts."""
        return self.planned.values * VALUE_BYTES + self.planned.new_texts * ROW_BYTES


def count_words(
    plan: PassPlan, collection: str, table: ChunkTable, config: RunConfig, tell: Callable[[int], None]
) -> CountedWords:
    """Count the words of new texts; `tell` is told how many texts are done."""
    assert plan.identity.bm25 is not None
    counter = WordCounter(plan.identity.bm25)
    stored, first = find_stored(plan, collection, config, table.keys), first_occurrences(table.keys)
    wanted = TableTexts(table, first & ~stored.mask)
    texts = words = values = 0
    seconds = 0.0
    for keys, window in wanted.read(Rows(0, len(table))):
        began = time.perf_counter()
        counts = counter.count(window)
        seconds += time.perf_counter() - began
        texts, words, values = texts + len(keys), words + int(counts.values.sum()), values + len(counts.values)
        tell(texts)
    planned = PlannedWords(
        model=plan.name,
        fingerprint=fingerprint(plan.identity),
        stored_texts=int((first & stored.mask).sum()),
        new_texts=texts,
        words=words,
        values=values,
    )
    return CountedWords(planned, seconds, stored.notes)
