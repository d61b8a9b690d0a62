"""Check the vectors of a batch; compute again on the host what is unusable, and notice when that is too much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ultimate_embedder.execution.batches import StartedBatch, bad_rows, not_finite
from ultimate_embedder.execution.host import encode_on_host
from ultimate_embedder.execution.ladder import FP32_RERUN, Report
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import LoadedModel
from ultimate_embedder.planning import fp16_is_too_narrow
from ultimate_embedder.vectors import shorten

UNUSABLE = "vectors that are not finite, of no length, or not of length one where the model normalises them"
HALF = "float16"  # bfloat16 has the range of float32


class OverflowWatch:
    """Counts the texts of a pass whose vectors are unusable in fp16; used by all its workers."""

    def __init__(self, texts: int, stored: int = 0) -> None:
        """`texts` are all of the pass, `stored` those that have a vector already."""
        self.texts = texts
        self.done = self.begun = stored
        self.unusable = 0
        self._too_narrow = False
        self._lock = OrderedLock("overflow watch", Rank.COUNTS)

    @property
    def too_narrow(self) -> bool:
        """Whether the pass must begin again in fp32."""
        return self._too_narrow

    def give_up(self, done: int, unusable: int) -> None:
        """Another process has found that the pass must begin again."""
        with self._lock:
            self.done, self.unusable, self._too_narrow = done, unusable, True

    def begin(self, texts: int) -> None:
        """A window of so many texts is at work."""
        with self._lock:
            self.begun += texts

    def note(self, done: int, unusable: int) -> bool:
        """Count some texts; gives whether the pass must begin again."""
        with self._lock:
            if not self._too_narrow:  # what was under way then is not counted
                self.unusable += unusable
                self._too_narrow = fp16_is_too_narrow(self.unusable, self.begun, self.done, self.texts)
                self.done += done
            return self._too_narrow


@dataclass(frozen=True)
class Checked:
    """Vectors, which of them are unusable all the same, and how many were computed again."""

    vectors: np.ndarray
    bad: np.ndarray
    fp32_rows: int


@dataclass(frozen=True)
class VectorCheck:
    """What the vectors of a worker go through before they are stored."""

    fp32_encoder: Callable[[], LoadedModel]
    report: Report
    is_bad: Callable[[np.ndarray], np.ndarray]
    dim: int | None
    """What they are cut to."""
    unit_norm: bool
    """Whether the model normalises them."""
    overflow: OverflowWatch | None = None

    def check(self, started: StartedBatch, vectors: np.ndarray) -> Checked:
        """The vectors as they are stored; unusable ones are computed again, unless the pass begins again anyway."""
        bad = self.is_bad(vectors)
        vectors = self._normalized(vectors)
        if self._begins_again(started, bad) or not bad.any() or all(p.dtype == "float32" for p in started.ran_on):
            return Checked(vectors, bad, 0)
        again = encode_on_host(self.fp32_encoder, started.texts, started.rows[bad])
        count, still_bad = len(again), self.is_bad(again)
        vectors[bad] = self._normalized(again)
        bad[np.flatnonzero(bad)] = still_bad
        self.report(FP32_RERUN, {"reason": UNUSABLE, "rows": count, "still_unusable": int(bad.sum())})
        return Checked(vectors, bad, count)

    def _begins_again(self, started: StartedBatch, bad: np.ndarray) -> bool:
        if self.overflow is None:
            return False
        half = [positions for part, positions in started.parts() if part.dtype == HALF]
        return self.overflow.note(len(bad), sum(int(bad[positions].sum()) for positions in half))

    def _normalized(self, vectors: np.ndarray) -> np.ndarray:
        """Cut to the dimension that was asked for, and of length one in fp32 where the model normalises."""
        if self.dim is None and not self.unit_norm:
            return vectors
        return shorten(vectors, self.dim)


def default_check(encoder: LoadedModel) -> Callable[[np.ndarray], np.ndarray]:
    """Marks vectors that are not finite, of no length, or not of length one where they must be."""
    return not_finite if encoder.kind == "sparse" else partial(bad_rows, unit_norm=encoder.unit_norm)
