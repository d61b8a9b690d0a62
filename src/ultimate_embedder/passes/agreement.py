"""What a low precision costs on this very collection: some of its vectors against those in fp32."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import numpy as np

from ultimate_embedder.batching import plan_batches
from ultimate_embedder.chunks import ChunkTable
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.files import write_json
from ultimate_embedder.models import Encoder, row_cosines
from ultimate_embedder.output import PassOutput
from ultimate_embedder.passes.windows import tokenized_windows
from ultimate_embedder.vectors import VectorStore, shorten

SAMPLE_TEXTS = 64
POOR_MEAN_COSINE = 0.99  # below it neighbours change places


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Cosines of vectors with their counterparts in fp32."""

    texts: int
    mean_cosine: float
    worst_cosine: float

    @property
    def poor(self) -> bool:
        """Whether searches would find other things."""
        return self.mean_cosine < POOR_MEAN_COSINE


def agreement_of(
    store: VectorStore, table: ChunkTable, exact: Callable[[], Encoder], dim: int | None, new_rows: int
) -> Agreement | None:
    """Compare some vectors, unless there are no new ones and an earlier run has done so; kept with the vectors."""
    path = PassOutput(store.folder).agreement
    if not new_rows and path.exists():
        return Agreement(**json.loads(path.read_text("utf-8")))
    rows = np.unique(np.linspace(0, len(table) - 1, SAMPLE_TEXTS).astype(int))
    mask = np.zeros(len(table), bool)
    mask[rows[store.holds(table.keys[rows])]] = True
    if not mask.any():
        return None
    cosines = _cosines(store, table, mask, exact(), dim)
    found = Agreement(len(cosines), float(cosines.mean()), float(cosines.min()))
    write_json(path, dataclasses.asdict(found))
    return found


def _cosines(store: VectorStore, table: ChunkTable, mask: np.ndarray, exact: Encoder, dim: int | None) -> np.ndarray:
    found = []
    for window in tokenized_windows(table, mask, exact):
        for batch in plan_batches(window.texts.lengths, CpuDevice().fixed_budget_tokens or 1):
            vectors = exact.forward(exact.batch(window.texts, batch.rows)).numpy()
            found.append(row_cosines(shorten(vectors, dim), store.read(window.keys[batch.rows])))
    return np.concatenate(found)
