"""Add up events of one kind: batches, windows, rejected records, duplicate ids and mitigations. All sums are exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from typing import TypeVar, cast

from ultimate_embedder import events
from ultimate_embedder.batching import add_lengths
from ultimate_embedder.report.rejections import joined_groups
from ultimate_embedder.types import MemorySnapshot

RolledUp = (
    events.BatchesEncoded | events.WindowTokenized | events.ChunksRejected | events.IdsDuplicated | events.Mitigated
)
AnyRolledUp = TypeVar("AnyRolledUp", bound=RolledUp)
PER_MILLE = 1000
LARGEST_ERROR = 2.0  # larger ones are counted as this


def rolled_up(batch: events.BatchEncoded) -> events.BatchesEncoded:
    """One batch in the form of several: a reader has to understand only that."""
    error = batch.prediction_error
    errors = {} if error is None else {round(min(error, LARGEST_ERROR) * PER_MILLE): 1}
    return events.BatchesEncoded(
        collection=batch.collection,
        timestamp=batch.timestamp,
        model=batch.model,
        model_pass=batch.model_pass,
        lease_id=batch.lease_id,
        device=batch.device,
        dtype=batch.dtype,
        first_index=batch.batch_index,
        batches=1,
        packed=int(batch.packed),
        reduced=int(batch.rows < batch.planned_rows),
        rows=batch.rows,
        texts=batch.texts,
        tokens=batch.tokens,
        padded_tokens=batch.padded_tokens,
        bad_rows=batch.bad_rows,
        fp32_rows=batch.fp32_rows,
        fewest_rows=batch.rows,
        most_rows=batch.rows,
        most_padded_tokens=batch.padded_tokens,
        longest=batch.longest,
        wait_seconds=batch.wait_seconds,
        forward_seconds=batch.forward_seconds,
        began=began(batch),
        held_bytes=batch.memory.reserved_bytes + batch.memory.outside_bytes,
        peak_held_bytes=batch.memory.peak_reserved_bytes + batch.memory.outside_bytes,
        memory=batch.memory,
        predicted_peak_bytes=batch.memory_before.allocated_bytes + batch.predicted_bytes
        if batch.predicted_bytes
        else 0,
        prediction_errors=errors,
        lengths=batch.lengths,
    )


def began(batch: events.BatchEncoded) -> float:
    """When its forward began; logs of earlier versions do not say it."""
    return batch.timestamp - batch.forward_seconds if batch.began is None else batch.began


def key_of(event: RolledUp) -> tuple[Hashable, ...]:
    """Events with equal keys can be added up."""
    match event:
        case events.BatchesEncoded():
            return "batches", event.collection, event.model_pass, event.lease_id, event.device, event.dtype
        case events.WindowTokenized():
            return "windows", event.collection, event.model_pass
        case events.Mitigated():
            return "mitigated", event.collection, *mitigation_key(event)
        case events.ChunksRejected() | events.IdsDuplicated():
            return type(event).__name__, event.collection


def mitigation_key(event: events.Mitigated) -> tuple[str, str, str]:
    """Kind, device and model."""
    return event.kind, str(event.details.get("device")), str(event.details.get("model"))


def begin_of(event: RolledUp) -> float:
    """When what it is about began."""
    return event.began if isinstance(event, events.BatchesEncoded) else event.timestamp


def end_of(event: RolledUp) -> float:
    """When what it is about ended."""
    return (event.until or event.timestamp) if isinstance(event, events.Mitigated) else event.timestamp


def joined(first: AnyRolledUp, second: AnyRolledUp) -> AnyRolledUp:
    """Both as one event; `second` is the later one, with the same key."""
    return cast(AnyRolledUp, _joined(first, second))


def _joined(first: RolledUp, second: RolledUp) -> RolledUp:
    if isinstance(first, events.BatchesEncoded) and isinstance(second, events.BatchesEncoded):
        return _joined_batches(first, second)
    if isinstance(first, events.WindowTokenized) and isinstance(second, events.WindowTokenized):
        return _joined_windows(first, second)
    if isinstance(first, events.Mitigated) and isinstance(second, events.Mitigated):
        return replace(first, times=first.times + second.times, until=end_of(second))
    if isinstance(first, events.IdsDuplicated) and isinstance(second, events.IdsDuplicated):
        return replace(second, chunks=first.chunks + second.chunks)
    if isinstance(first, events.ChunksRejected) and isinstance(second, events.ChunksRejected):
        groups = joined_groups([*first.groups, *second.groups])
        return replace(second, records=first.records + second.records, groups=groups)
    raise TypeError(f"{type(first).__name__} and {type(second).__name__} cannot be added up")


def _joined_batches(first: events.BatchesEncoded, second: events.BatchesEncoded) -> events.BatchesEncoded:
    return replace(
        second,
        first_index=first.first_index,
        batches=first.batches + second.batches,
        packed=first.packed + second.packed,
        reduced=first.reduced + second.reduced,
        rows=first.rows + second.rows,
        texts=first.texts + second.texts,
        tokens=first.tokens + second.tokens,
        padded_tokens=first.padded_tokens + second.padded_tokens,
        bad_rows=first.bad_rows + second.bad_rows,
        fp32_rows=first.fp32_rows + second.fp32_rows,
        fewest_rows=min(first.fewest_rows, second.fewest_rows),
        most_rows=max(first.most_rows, second.most_rows),
        predicted_peak_bytes=max(first.predicted_peak_bytes, second.predicted_peak_bytes),
        most_padded_tokens=max(first.most_padded_tokens, second.most_padded_tokens),
        longest=max(first.longest, second.longest),
        wait_seconds=first.wait_seconds + second.wait_seconds,
        forward_seconds=first.forward_seconds + second.forward_seconds,
        began=min(first.began, second.began),
        held_bytes=max(first.held_bytes, second.held_bytes),
        peak_held_bytes=max(first.peak_held_bytes, second.peak_held_bytes),
        memory=_with_peaks_of(second.memory, first.memory),
        prediction_errors=dict(sorted((Counter(first.prediction_errors) + Counter(second.prediction_errors)).items())),
        lengths=add_lengths([first.lengths, second.lengths]),
    )


def _with_peaks_of(last: MemorySnapshot, before: MemorySnapshot) -> MemorySnapshot:
    return replace(
        last,
        peak_bytes=max(last.peak_bytes, before.peak_bytes),
        peak_reserved_bytes=max(last.peak_reserved_bytes, before.peak_reserved_bytes),
    )


def _joined_windows(first: events.WindowTokenized, second: events.WindowTokenized) -> events.WindowTokenized:
    return replace(
        second,
        texts=first.texts + second.texts,
        tokens=first.tokens + second.tokens,
        truncated_texts=first.truncated_texts + second.truncated_texts,
        segments=first.segments + second.segments,
        windows=first.windows + second.windows,
        seconds=first.seconds + second.seconds,
    )
