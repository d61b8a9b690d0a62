"""What batches have taught about a model on a device: what they take, how large they may be, which way they go."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ultimate_embedder.batching import (
    Allowance,
    Decision,
    Detour,
    Layout,
    MemoryModel,
    after_climb,
    after_detour,
    after_failure,
    after_success,
    decide,
    length_bucket,
)
from ultimate_embedder.execution.packing import layout_of
from ultimate_embedder.models import aligned_length, padded_length
from ultimate_embedder.types import MemorySnapshot


@dataclass
class Learned:
    """Belongs to one worker at a time; the next one on the same device needs not learn it again."""

    memory: MemoryModel
    allowance: Allowance | None = None
    detours: dict[int, Detour] = field(default_factory=dict)
    """By power of two of the length."""

    def allow(self, now: MemorySnapshot) -> Decision:
        """What the next batch may take, by the memory that there is now."""
        decision = decide(self.allowance, now, self.memory.reserve_ratio)
        self.allowance = decision.allowance
        return decision

    def most_rows(self, longest: int, packed: bool, allowance: Allowance) -> int:
        """How many rows of a length an allowance has room for."""
        length = longest if packed else aligned_length(longest)
        return self.memory.most_rows(length, allowance.activation_bytes, "packed" if packed else "padded")

    def predicted_bytes(self, lengths: np.ndarray, packed: bool, lanes: int) -> int:
        """What rows of these lengths take on a device, at the peak."""
        rows = _full_rows(lengths, packed)
        rows_each = rows if lanes == 1 else math.ceil(rows / lanes)
        return self.memory.allocated_bytes(rows_each, _length(lengths, packed), layout_of(lengths, packed))

    def learn(self, lengths: np.ndarray, packed: bool, before: MemorySnapshot, after: MemorySnapshot) -> None:
        """A batch of rows of these lengths was run whole: see what it took."""
        used = after.peak_bytes - before.allocated_bytes
        layout: Layout = layout_of(lengths, packed)
        self.memory.observe(_full_rows(lengths, packed), _length(lengths, packed), layout, used)
        if after.peak_reserved_bytes > before.reserved_bytes:
            self.memory.observe_reserved(after.peak_bytes, after.peak_reserved_bytes)
        if self.allowance is not None:
            self.allowance = after_success(self.allowance)

    def remember_failure(self, failed_bytes: int) -> tuple[Allowance, Allowance] | None:
        """A batch that was thought to need so much had no room: gives what was allowed before, and from now on."""
        if self.allowance is None:
            return None
        before = self.allowance
        self.allowance = after_failure(before, failed_bytes)
        return before, self.allowance

    def detour(self, length: int) -> Detour | None:
        """The way that batches of this length have taken; None if they are run whole."""
        return self.detours.get(length_bucket(length))

    def remember_way(self, length: int, rung: str, room_bytes: int, *, at_once: bool) -> None:
        """A batch of this length was run by a rung: at once, or after everything before that rung had failed."""
        bucket = length_bucket(length)
        known = self.detours.get(bucket)
        if known is not None and at_once:
            self.detours[bucket] = after_detour(known)
        else:
            self.detours[bucket] = after_climb(known, rung, room_bytes)

    def forget_way(self, length: int) -> None:
        """A batch of this length was run whole."""
        self.detours.pop(length_bucket(length), None)


def _length(lengths: np.ndarray, packed: bool) -> int:
    """The length of each row as a card sees it."""
    return int(lengths.max()) if packed else padded_length(lengths, on_card=True)


def _full_rows(lengths: np.ndarray, packed: bool) -> float:
    """The size of a batch in rows of its longest: as many as it has, less the padding that it does without."""
    return float(lengths.sum() / lengths.max()) if packed else float(len(lengths))
