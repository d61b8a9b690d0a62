"""Add up what happened in a pass: batches, windows, and the parts of its time."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

from ultimate_embedder import events
from ultimate_embedder.report.roll_up import PER_MILLE
from ultimate_embedder.summary import CollectionSummary, LengthBin, PassSummary, TruncatedChunk

PARTS = ("moving", "forward", "wait", "other")


@dataclasses.dataclass
class PassTotals:
    """What is needed of a pass beside its summary."""

    summary: PassSummary
    errors: Counter[int] = dataclasses.field(default_factory=Counter)
    """Batches by the error of their predicted memory, in thousandths."""
    bins: dict[int, LengthBin] = dataclasses.field(default_factory=dict)
    """Those of the summary, by their most tokens."""
    began: float | None = None
    """When it was started last; None when it has ended."""
    moving_seconds: float = 0.0
    workers: int = 0

    def restart(self, begun: PassSummary) -> None:
        """With another identity: what was done before is of no use."""
        self.summary, self.errors, self.bins = begun, Counter(), {}
        self.moving_seconds, self.workers = 0.0, 0

    def go_on(self, timestamp: float) -> None:
        """It is started again; if it did not come to its end, only events tell how long it had worked."""
        if self.began is not None:
            self.summary.seconds += max(0.0, timestamp - self.began)

    def place(self, event: events.ModelPlaced) -> None:
        """Its model is on its devices."""
        self.moving_seconds += event.seconds
        self.workers = max(self.workers, event.workers)

    def add_batches(self, event: events.BatchesEncoded) -> None:
        """One batch, or several."""
        current = self.summary
        current.batches += event.batches
        current.encoded_texts += event.texts
        current.packed_batches += event.packed
        current.reduced_batches += event.reduced
        current.tokens += event.tokens
        current.padded_tokens += event.padded_tokens
        current.forward_seconds += event.forward_seconds
        current.wait_seconds += event.wait_seconds
        current.fp32_rows += event.fp32_rows
        for counts, key in ((current.tokens_by_device, event.device), (current.tokens_by_dtype, event.dtype)):
            counts[key] = counts.get(key, 0) + event.tokens
        current.largest_batch_rows = max(current.largest_batch_rows, event.most_rows)
        current.largest_batch_tokens = max(current.largest_batch_tokens, event.most_padded_tokens)
        current.peak_memory_bytes = max(current.peak_memory_bytes, event.memory.peak_bytes)
        current.peak_reserved_bytes = max(current.peak_reserved_bytes, event.memory.peak_reserved_bytes)
        current.predicted_peak_bytes = max(current.predicted_peak_bytes, event.predicted_peak_bytes)
        self.errors.update(event.prediction_errors)
        self._add_lengths(event)

    def _add_lengths(self, event: events.BatchesEncoded) -> None:
        current = self.summary
        for most, counts in event.lengths.items():
            here = self.bins.get(most)
            if here is None:
                here = self.bins[most] = LengthBin(most_tokens=most, texts=0, overlong=0, tokens=0, tokens_lost=0)
                current.lengths = [self.bins[most] for most in sorted(self.bins)]
            here.texts += counts.texts
            here.overlong += counts.overlong
            here.tokens += counts.tokens
            here.tokens_lost += counts.tokens_lost
            current.truncated_texts += counts.overlong if counts.tokens_lost else 0

    def finish(self, event: events.PassFinished) -> None:
        """The pass has ended."""
        current = self.summary
        current.dim, current.truncated, current.pooled = event.dim, event.truncated, event.pooled
        current.longest_tokens, current.tokens_lost = event.longest_tokens, event.tokens_lost
        current.lost_share = event.tokens_lost / max(1, event.truncated_tokens)
        current.lost_most = [TruncatedChunk(**dataclasses.asdict(each)) for each in event.lost_most]
        current.stored_chunks = event.stored_chunks
        current.seconds += event.seconds
        current.ended, self.began = event.timestamp, None
        current.lease_ids = [*current.lease_ids, *event.lease_ids]
        current.batch_rows = max(current.batch_rows, event.batch_rows)
        if event.devices or current.tokens_by_device:  # those that worked; before, those that were planned
            current.devices = _in_order([*event.devices, *current.tokens_by_device], planned=current.devices)
        if len(current.tokens_by_dtype) == 1:
            (current.dtype,) = current.tokens_by_dtype
        if self.errors:
            current.prediction_error = _percentile(self.errors, 0.95) / PER_MILLE
        if current.tokens:
            current.padding_ratio = current.padded_tokens / current.tokens
            current.texts_per_second = current.encoded_texts / current.seconds
            current.tokens_per_second = current.tokens / current.seconds
            current.seconds_by_part = self._parts()

    def _parts(self) -> dict[str, float]:
        """Its seconds by what its workers did, on average."""
        current = self.summary
        moving = min(self.moving_seconds, current.seconds)
        workers = max(1, self.workers)
        forward, wait = current.forward_seconds / workers, current.wait_seconds / workers
        # a worker that was lost worked for a part of the time only, and what the host computes is counted with its card
        most = current.seconds - moving
        scale = most / (forward + wait) if forward + wait > most else 1.0
        forward, wait = forward * scale, wait * scale
        other = max(0.0, current.seconds - moving - forward - wait)
        return dict(zip(PARTS, (moving, forward, wait, other), strict=True))


def encode_seconds(collection: CollectionSummary) -> tuple[float, dict[str, float]]:
    """How long the passes of a collection took, together or one after the other, and what that consists of."""
    passes = collection.passes
    if collection.mode == "simultaneous":
        passes = sorted(passes, key=lambda each: each.seconds)[-1:]
    parts = {part: sum(each.seconds_by_part.get(part, 0.0) for each in passes) for part in PARTS}
    return sum(each.seconds for each in passes), parts if any(parts.values()) else {}


def _percentile(counts: Counter[int], part: float) -> int:
    place = int(part * (counts.total() - 1))
    for value in sorted(counts):
        place -= counts[value]
        if place < 0:
            return value
    return max(counts)


def _in_order(names: Iterable[str], planned: list[str]) -> list[str]:
    """The devices that worked, each once, in the order of the plan; a group is taken apart."""
    worked = {name for group in names for name in group.split("+")}
    return [*(name for name in planned if name in worked), *sorted(worked - set(planned))]
