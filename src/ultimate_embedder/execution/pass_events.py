"""The events of one pass over one collection."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ultimate_embedder.batching import count_lengths
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.events import (
    BatchEncoded,
    BatchStalled,
    Emit,
    Mitigated,
    PassFinished,
    PassStarted,
    Warned,
    WindowTokenized,
)
from ultimate_embedder.execution.batches import EncodedBatch, StartedBatch
from ultimate_embedder.execution.ladder import Mitigation, RanOn, Report
from ultimate_embedder.execution.overlong import OverlongTexts
from ultimate_embedder.execution.stalls import Stall
from ultimate_embedder.execution.windows import Window
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import padded_length
from ultimate_embedder.planning import PassPlan, TaskResult
from ultimate_embedder.types import TruncatedText
from ultimate_embedder.vectors import EncoderFacts, fingerprint

LEARNING_BATCHES = 10  # of a device: until then its predictions of memory are being corrected


class PassEvents:
    """Emits what happens in a pass; may be used from any thread."""

    def __init__(self, plan: PassPlan, collection: str, emit: Emit) -> None:
        self.plan = plan
        self.collection = collection
        self._emit = emit
        self._batch_numbers = itertools.count()
        self._abandoned = False
        self._done = _Done()
        self._leases: list[str] = []
        self.overlong = OverlongTexts()
        self.rejected: dict[bytes, str] = {}
        """Texts that were given up, by key, and why."""

    @property
    def done(self) -> TaskResult:
        """Rows that were encoded, also in attempts that ended because devices were lost."""
        return self._done.result

    def of(self, plan: PassPlan) -> PassEvents:
        """The events of the same pass when it is planned again, with another identity perhaps; batches count on."""
        events = PassEvents(plan, self.collection, self._emit)
        events._batch_numbers = self._batch_numbers
        events._leases = self._leases
        if plan.identity == self.plan.identity:
            events._done, events.overlong = self._done, self.overlong
            events.rejected = self.rejected
        return events

    def leased(self, lease_id: str) -> None:
        """The pass has its devices by this lease."""
        self._leases.append(lease_id)

    def started(self, devices: Sequence[str], texts: int, stored_texts: int, facts: EncoderFacts | None = None) -> None:
        """The pass is about to begin."""
        self._emit(
            PassStarted(
                collection=self.collection,
                model=self.plan.name,
                model_pass=self.plan.number,
                weight=self.plan.weight,
                devices=list(devices),
                dtype=self.plan.identity.dtype,
                fingerprint=fingerprint(self.plan.identity),
                texts=texts,
                stored_texts=stored_texts,
                batch_tokens=self.plan.batch_tokens,
                batch_rows_limit=self.plan.batch_rows,
                max_tokens=facts.max_tokens if facts else None,
                document_prompt=facts.document_prompt if facts else None,
                kind=self.plan.kind,
                counts_words=self.plan.counts_words,
                quantization=self.plan.identity.quantization,
            )
        )

    def tokenized(self, window: Window) -> None:
        """A window of texts was tokenised."""
        segments = window.texts.segments
        self._emit(
            WindowTokenized(
                collection=self.collection,
                model=self.plan.name,
                model_pass=self.plan.number,
                texts=len(window.keys),
                tokens=int(window.texts.lengths.sum()),
                truncated_texts=0 if segments else int(window.texts.overlong.sum()),
                segments=int(segments.rows_per_text[window.texts.overlong].sum()) if segments else 0,
                seconds=window.seconds,
            )
        )

    def encoded(self, encoded: EncodedBatch, window: Window, texts: np.ndarray) -> None:
        """A batch is done; with it these texts of the window, which are handed to the store."""
        started = encoded.started
        tokens, over = window.texts.text_tokens[texts], window.texts.over[texts]
        self.overlong.add(window.keys[texts], tokens, over)
        self._done.add({ran_on.device: ran_on.rows for ran_on, _ in started.parts()})
        for number, (ran_on, positions) in enumerate(started.parts()):
            rows, lengths = ran_on.rows, started.lengths[positions]
            self._emit(
                BatchEncoded(
                    collection=self.collection,
                    model=self.plan.name,
                    model_pass=self.plan.number,
                    batch_index=next(self._batch_numbers),
                    device=ran_on.device,
                    dtype=ran_on.dtype,
                    rows=rows,
                    planned_rows=started.planned_rows,
                    tokens=int(lengths.sum()),
                    padded_tokens=_padded_tokens(ran_on, lengths, started.packed),
                    longest=int(lengths.max()),
                    bad_rows=int(encoded.bad[positions].sum()),
                    packed=started.packed,
                    texts=len(texts) if not number else 0,
                    # what belongs to the batch as a whole is told with its first part
                    fp32_rows=encoded.fp32_rows if not number else 0,
                    predicted_bytes=started.predicted_bytes if not number else 0,
                    measured_bytes=started.measured_bytes if not number else 0,
                    wait_seconds=encoded.waited if not number else 0.0,
                    forward_seconds=encoded.seconds if not number else 0.0,
                    memory_before=started.before,
                    memory=started.after,
                    began=encoded.began,
                    lease_id=self._leases[-1] if self._leases else "",
                    prediction_error=self._prediction_error(started, ran_on.device) if not number else None,
                    lengths=count_lengths(tokens, over, lost=window.texts.segments is None) if not number else {},
                )
            )

    def adopt(self, event: BatchEncoded) -> None:
        """Tell of a batch that another process has encoded, with a number of ours."""
        self._done.add({event.device: event.rows})
        self._emit(replace(event, batch_index=next(self._batch_numbers)))

    def reject(self, keys: np.ndarray, reason: str) -> None:
        """There will be no vectors of these texts."""
        self.rejected |= {bytes(key): reason for key in np.ascontiguousarray(keys)}

    def _prediction_error(self, started: StartedBatch, device: str) -> float | None:
        """How far the predicted memory was off; None if it was not measured, or while it is learned."""
        if not (started.measured_bytes and started.predicted_bytes and self._done.is_settled(device)):
            return None
        return abs(started.predicted_bytes - started.measured_bytes) / started.measured_bytes

    def counted(self, texts: int, words: int, seconds: float) -> None:
        """The words of some texts were counted, on the host."""
        self._done.add({"cpu": texts})
        memory = CpuDevice().snapshot()
        self._emit(
            BatchEncoded(
                collection=self.collection,
                model=self.plan.name,
                model_pass=self.plan.number,
                batch_index=next(self._batch_numbers),
                device="cpu",
                dtype=self.plan.identity.dtype,
                rows=texts,
                texts=texts,
                planned_rows=texts,
                tokens=words,
                padded_tokens=words,
                longest=0,
                bad_rows=0,
                packed=False,
                fp32_rows=0,
                predicted_bytes=0,
                measured_bytes=0,
                wait_seconds=0.0,
                forward_seconds=seconds,
                memory_before=memory,
                memory=memory,
                began=time.time() - seconds,
            )
        )

    def mitigated(self, mitigation: Mitigation, details: dict[str, Any]) -> None:
        """The course was changed."""
        if self._abandoned:
            return
        details = {"model": self.plan.name, **details}
        self._emit(Mitigated(collection=self.collection, kind=mitigation.kind, details=details))

    def abandon(self) -> None:
        """A worker was given up with its device: if it comes back, what it reports is of no interest any more."""
        self._abandoned = True

    def mitigated_on(self, device: str) -> Report:
        """What reports mitigations on a device."""
        return lambda mitigation, details: self.mitigated(mitigation, {"device": device, **details})

    def stalled(self, stall: Stall) -> None:
        """A batch takes much longer than it should."""
        device, memory = stall.device.name, stall.device.last_snapshot
        self._emit(
            BatchStalled(
                collection=self.collection,
                model=self.plan.name,
                model_pass=self.plan.number,
                device=device,
                rows=stall.rows,
                longest=stall.longest,
                seconds=stall.seconds,
                expected_seconds=stall.expected_seconds,
                memory=memory,
            )
        )
        size = f" of {stall.rows} x {stall.longest} tokens" if stall.rows else ""
        message = (
            f"{self.plan.name}: {device} has worked on {stall.what}{size} for "
            f"{stall.seconds:.0f} s; {stall.expected_seconds:.1f} s were expected. It may hang. "
            f"{memory.free_bytes / 1e6:,.0f} MB of its memory were free when it was last read."
        )
        self._emit(Warned(collection=self.collection, message=message))

    def finished(
        self, seconds: float, *, dim: int, stored_chunks: int, overlong: int, lost_most: Sequence[TruncatedText]
    ) -> None:
        """The pass is over; `overlong` of its chunks were longer than the token limit."""
        pools = self.plan.identity.overlong == "pool"
        result = self.done
        self._emit(
            PassFinished(
                collection=self.collection,
                model=self.plan.name,
                model_pass=self.plan.number,
                weight=self.plan.weight,
                devices=list(result.largest_batch),
                rows=result.rows,
                batch_rows=sum(result.largest_batch.values()),
                dim=dim,
                stored_chunks=stored_chunks,
                truncated=0 if pools else overlong,
                pooled=overlong if pools else 0,
                truncated_tokens=0 if pools else self.overlong.tokens,
                longest_tokens=self.overlong.longest_tokens,
                tokens_lost=0 if pools else self.overlong.tokens_over,
                lost_most=() if pools else tuple(lost_most),
                lease_ids=tuple(self._leases),
                seconds=seconds,
            )
        )


class _Done:
    """Counts what workers have done; may be used from any thread."""

    def __init__(self) -> None:
        self.result = TaskResult()
        self._measured: Counter[str] = Counter()
        self._lock = OrderedLock("done", Rank.COUNTS)

    def is_settled(self, device: str) -> bool:
        """Count a batch whose memory was measured; whether the device had enough of them before it."""
        with self._lock:
            self._measured[device] += 1
            return self._measured[device] > LEARNING_BATCHES

    def add(self, rows: Mapping[str, int]) -> None:
        with self._lock:
            self.result += TaskResult(rows, rows)


def _padded_tokens(ran_on: RanOn, lengths: np.ndarray, packed: bool) -> int:
    if packed:
        return int(lengths.sum())
    return padded_length(lengths, on_card=ran_on.device != "cpu") * len(lengths)
