"""Windows: runs of texts that are tokenised and planned together, so that memory stays bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.batching import Batch, plan_batches
from ultimate_embedder.chunks import ChunkTable
from ultimate_embedder.models import Encoder, TokenizedTexts

WINDOW_TEXTS = 4096
WINDOW_CHARACTERS = 16 << 20  # long texts close a window early


@dataclass(frozen=True)
class Window:
    """Tokenised texts with their keys, and the batches they are cut into."""

    keys: np.ndarray
    texts: TokenizedTexts
    batches: list[Batch]
    seconds: float


def tokenized_windows(table: ChunkTable, wanted: np.ndarray, encoder: Encoder, budget_tokens: int) -> Iterator[Window]:
    """Yield the `wanted` rows of the table (a mask), window by window, ready to be encoded."""
    for rows, texts in _runs(table, wanted):
        started = time.perf_counter()
        tokenized = encoder.tokenize(texts)
        batches = plan_batches(tokenized.lengths, budget_tokens)
        yield Window(table.keys[rows], tokenized, batches, time.perf_counter() - started)


def _runs(table: ChunkTable, wanted: np.ndarray) -> Iterator[tuple[list[int], list[str]]]:
    rows: list[int] = []
    texts: list[str] = []
    characters = 0
    for block in table.blocks(wanted):
        for row, text in enumerate(block.texts, block.start):
            if not wanted[row]:
                continue
            rows.append(row)
            texts.append(text)
            characters += len(text)
            if len(rows) == WINDOW_TEXTS or characters >= WINDOW_CHARACTERS:
                yield rows, texts
                rows, texts, characters = [], [], 0
    if rows:
        yield rows, texts
