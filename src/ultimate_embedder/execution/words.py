"""Count the words of texts for BM25: a pass that needs neither a model nor a device."""

from __future__ import annotations

import time

import numpy as np

from ultimate_embedder.chunks import TextRows
from ultimate_embedder.execution.pass_events import PassEvents
from ultimate_embedder.execution.windows import TableTexts, first_occurrences
from ultimate_embedder.models import WordCounter
from ultimate_embedder.planning import PassPlan, Rows
from ultimate_embedder.session import Session
from ultimate_embedder.vectors import VectorStore


def count_words(plan: PassPlan, collection: str, table: TextRows, store: VectorStore, session: Session) -> None:
    """Store the counts of every text that has none yet, a window of texts at a time, or until the run is stopped."""
    assert plan.identity.bm25 is not None
    started = time.perf_counter()
    counter = WordCounter(plan.identity.bm25)
    every = Rows(0, len(table))
    wanted = TableTexts(table, first_occurrences(table.keys) & ~store.holds(table.keys))
    texts = table.distinct_texts()
    events = PassEvents(plan, collection, session.emit)
    events.started(["cpu"], texts, stored_texts=texts - wanted.count(every))
    with store:
        for keys, window in wanted.read(every):
            if session.stop.reason is not None:
                break
            began = time.perf_counter()
            counts = counter.count(window)
            store.append(keys, counts, np.zeros(len(keys), bool))
            events.counted(len(keys), int(counts.values.sum(dtype=np.float64)), time.perf_counter() - began)
    events.finished(
        time.perf_counter() - started,
        dim=0,
        stored_chunks=int(store.holds(table.keys).sum()),
        overlong=0,
        lost_most=(),
    )
