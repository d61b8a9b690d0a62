"""A worker: one encoder on one device, that asks for batches which fit, and survives when one does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ultimate_embedder.batching import Allowance, Batch, Decision
from ultimate_embedder.devices import Device, DeviceClock
from ultimate_embedder.execution.batches import EncodedBatch, StartedBatch
from ultimate_embedder.execution.checking import OverflowWatch, VectorCheck, default_check
from ultimate_embedder.execution.ladder import (
    BATCH_GROWN,
    BATCH_REDUCED,
    COMPANION_PAUSED,
    COMPANION_TO_CPU,
    COMPANION_TO_GPU,
    Companion,
    Report,
)
from ultimate_embedder.execution.learned import Learned
from ultimate_embedder.execution.runner import BatchRunner
from ultimate_embedder.execution.seat import Seat
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import LoadedModel, TokenizedTexts
from ultimate_embedder.types import MemorySnapshot

NO_ROOM = "the device has no room for the whole batch"
SHORTER = "the texts are shorter: the whole batch has room"


class Worker:
    """Encodes batches on one device. Every change of course goes to `report`."""

    def __init__(
        self,
        encoder: LoadedModel,
        device: Device,
        fp32_encoder: Callable[[], LoadedModel],
        report: Report,
        *,
        dim: int | None = None,
        learned: Learned | None = None,
        is_bad: Callable[[np.ndarray], np.ndarray] | None = None,
        companions: Sequence[Companion] = (),
        refuges: Sequence[Device] = (),
        place: int = 0,
        packs: bool = False,
        overflow: OverflowWatch | None = None,
        alone: bool = False,
    ) -> None:
        """`dim` cuts the vectors; `learned` is from an earlier turn on the device; `is_bad` marks unusable rows.

        `companions` can be asked to make room; `refuges` are where this one goes when it is asked to.
        `packs` lays rows of several lengths end to end, where the model can.
        `overflow` counts the unusable rows of the pass, also those of other workers.
        `alone`: no other model works on the device meanwhile, so that its memory need not be read twice for a batch.
        `place` is lower than that of each companion: it is the order in which workers are locked.
        """
        self.pauses = 0
        self._seat = Seat(encoder, device, report)
        self._refuges = refuges
        self._busy = OrderedLock(f"worker on {device.name}", Rank.WORKER, place)
        self._fp32_encoder = fp32_encoder
        self._report = report
        is_bad = is_bad or default_check(encoder)
        self._check = VectorCheck(fp32_encoder, report, is_bad, dim, encoder.unit_norm, overflow)
        self._packs = packs
        self._reduced = False
        self._alone = alone
        self._memory_now: MemorySnapshot | None = None  # as the batch that comes next was cut by
        self._runner = BatchRunner(self._seat, fp32_encoder, report, companions, learned)
        self._idle_since = device.mark()
        self._clock = DeviceClock(self._idle_since)

    @property
    def device(self) -> Device:
        """Where it works now."""
        return self._seat.device

    @property
    def learned(self) -> Learned:
        """What a worker on the same device needs not learn again."""
        return self._runner.learned

    @property
    def model_name(self) -> str:
        """Of the model."""
        return self._seat.encoder.name

    def rows_that_fit(self, batch: Batch, planned_rows: int | None = None) -> int:
        """How many rows of the batch the device has room for; `planned_rows` is of the batch that it is a rest of."""
        while True:
            device = self.device
            if not device.has_ceiling:
                budget = device.fixed_budget_tokens if self._seat.moved else None
                return max(1, budget // max(1, batch.longest)) if budget else len(batch.rows)
            with device.lock:  # else another model's activations would be taken for weights
                if device is self.device:
                    return self._rows_that_fit(batch, planned_rows or len(batch.rows))

    def encode(self, texts: TokenizedTexts, batch: Batch) -> EncodedBatch:
        """Encode a batch, whatever it takes."""
        return self.finish(self.start(texts, batch))

    def wait_from_here(self) -> None:
        """Count time without work from now on."""
        with self._busy:
            self._idle_since = self.device.mark()

    def start(self, texts: TokenizedTexts, batch: Batch, planned_rows: int | None = None) -> StartedBatch:
        """Give a batch to the device, whatever it takes to make it fit. A card computes it while we do other things."""
        while True:
            device = self.device
            # the device before ourselves: who has it may ask us to make room meanwhile
            with device.lock, self._busy:
                if device is self.device:
                    return self._start(texts, batch, planned_rows or len(batch.rows))

    def finish(self, started: StartedBatch) -> EncodedBatch:
        """Wait for a batch and check its vectors; what is unusable is computed again."""
        vectors = started.fetch()
        seconds = started.ended.seconds_since(started.begun)
        began = started.clock.began(started.begun, seconds)
        checked = self._check.check(started, vectors)
        waited = started.begun.seconds_since(started.idle_since)
        return EncodedBatch(started, checked.vectors, checked.bad, checked.fp32_rows, waited, seconds, began)

    def pause(self, reason: str) -> bool:
        """Take the weights off the device until there is room for them; False if there were none."""
        with self._busy:
            if not self._seat.take_weights():
                return False
            self.pauses += 1
        details = {"device": self.device.name, "weight_bytes": self._seat.encoder.weight_bytes}
        self._report(COMPANION_PAUSED, {"reason": reason, **details})
        return True

    def release_weights(self) -> None:
        """Take the weights off the device while no worker computes; the next batch brings them back."""
        with self.device.lock, self._busy:
            if self.device.has_ceiling and self._seat.take_weights(on_purpose=True):
                self.device.release_workspaces()

    def move_away(self, reason: str) -> bool:
        """Leave the device for the first refuge with room, else for the CPU."""
        with self._busy:
            before = self.device
            refuge = self._seat.move_away(self._refuges, self._fp32_encoder)
            self._idle_since = self.device.mark()
            self._clock = DeviceClock(self._idle_since)
            self._runner.forget()
            self._memory_now = None
        self._report(
            COMPANION_TO_GPU if refuge else COMPANION_TO_CPU,
            {"reason": reason, "before": before.name, "after": self.device.name},
        )
        return True

    def close(self) -> None:
        """End: nothing that was made for this worker is left, on the device or on the host."""
        if self.device.lost is not None:  # a thread may be blocked in its driver, with the lock
            self._seat.close()
            return
        with self._busy:
            self._seat.close()

    def _rows_that_fit(self, batch: Batch, planned_rows: int) -> int:
        self._memory_now = self.device.hold_ceiling()
        before = self.learned.allowance
        decision = self.learned.allow(self._memory_now)
        fit = self._most_rows(batch, decision.allowance)
        reduced = fit < len(batch.rows)
        if reduced != self._reduced and (reduced or len(batch.rows) == planned_rows):
            self._reduced = reduced
            self._report(
                BATCH_REDUCED if reduced else BATCH_GROWN, self._details(batch, planned_rows, before, decision, fit)
            )
        return fit

    def _most_rows(self, batch: Batch, allowance: Allowance) -> int:
        return self.learned.most_rows(batch.longest, self._packs, allowance) * self.device.lanes

    def _details(
        self, batch: Batch, planned_rows: int, before: Allowance | None, decision: Decision, fit: int
    ) -> dict[str, Any]:
        """Why batches are smaller, or not any more; `rows_before` and `rows` are of the same length."""
        reduced = fit < len(batch.rows)
        changed = decision.action == ("shrink" if reduced else "grow")
        known = planned_rows if before is None else min(planned_rows, self._most_rows(batch, before))
        return {
            "reason": decision.reason if changed else NO_ROOM if reduced else SHORTER,
            "longest": batch.longest,
            "planned_rows": planned_rows,
            "rows_before": planned_rows if reduced and not changed else known,
            "rows": min(fit, planned_rows),
            "activation_bytes": decision.allowance.activation_bytes,
        }

    def _start(self, texts: TokenizedTexts, batch: Batch, planned_rows: int) -> StartedBatch:
        device, idle_since = self.device, self._idle_since
        known = self._memory_now if self._alone else None
        before, self._memory_now = known or device.hold_ceiling(), None
        device.reset_peak()
        lengths = texts.lengths[batch.rows]
        packed = self._is_packed(texts, batch.rows)
        predicted = self._runner.predicted_bytes(lengths, packed)
        begun = device.mark()
        launched = self._runner.run(texts, batch.rows, packed)
        whole = launched.whole
        self._idle_since = device.mark()
        after = device.snapshot()  # the allocator's books: they are ahead of the device, and complete
        learns = whole and device.has_ceiling and device.lanes == 1
        if learns:
            self.learned.learn(lengths, packed, before, after)
        return StartedBatch(
            texts=texts,
            rows=batch.rows,
            planned_rows=planned_rows,
            ran_on=launched.ran_on,
            packed=packed and whole,
            whole=whole,
            fetch=launched.fetch,
            predicted_bytes=predicted,
            measured_bytes=after.peak_bytes - before.allocated_bytes if learns else 0,
            before=before,
            after=after,
            idle_since=idle_since,
            begun=begun,
            ended=self._idle_since,
            clock=self._clock,
        )

    def _is_packed(self, texts: TokenizedTexts, rows: np.ndarray) -> bool:
        """Whether these rows are laid end to end: by rule, where the model can; never by what is faster."""
        lengths = texts.lengths[rows]
        if not self._packs or lengths.min() == lengths.max():
            return False
        return self._seat.encoder.can_pack_rows(texts, rows, self.device)
