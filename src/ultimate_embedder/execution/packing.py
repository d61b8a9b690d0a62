"""How the rows of a batch lie: padded, of one length, or end to end; and which of these is faster here."""

from __future__ import annotations

from statistics import median

import numpy as np

from ultimate_embedder.batching import Layout
from ultimate_embedder.devices import Device
from ultimate_embedder.models import LoadedModel

PACKING_TRIALS = 3  # batches each way, before one is chosen


def layout_of(lengths: np.ndarray, packed: bool) -> Layout:
    """How rows of these lengths lie in a batch."""
    if lengths.min() == lengths.max():
        return "uniform"
    return "packed" if packed else "padded"


class Packing:
    """Whether batches that would be padded are faster laid end to end: tried on the first ones, both ways in turn."""

    def __init__(self) -> None:
        self._seconds_per_token: dict[bool, list[float]] = {True: [], False: []}

    def choose(self, encoder: LoadedModel, device: Device, lengths: np.ndarray) -> bool:
        """Whether to pack the next batch, of rows that have these lengths."""
        if lengths.min() == lengths.max() or not encoder.can_pack(device):
            return False
        if self.settled is None:
            return len(self._seconds_per_token[True]) <= len(self._seconds_per_token[False])
        return self.settled

    @property
    def settled(self) -> bool | None:
        """Whether packing has turned out to be faster; None while it is being tried."""
        packed, padded = self._seconds_per_token[True], self._seconds_per_token[False]
        if min(len(packed), len(padded)) < PACKING_TRIALS:
            return None
        return median(packed[:PACKING_TRIALS]) < median(padded[:PACKING_TRIALS])

    def note(self, packed: bool, lengths: np.ndarray, seconds: float) -> None:
        """Learn what a batch took."""
        if lengths.min() != lengths.max():
            self._seconds_per_token[packed].append(seconds / int(lengths.sum()))
