"""A worker: one encoder on one device, that asks for batches which fit, and survives when one does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ultimate_embedder.batching import Allowance, Batch, Layout, MemoryModel, after_failure, after_success, decide
from ultimate_embedder.devices import CpuDevice, Device, Fetch
from ultimate_embedder.execution.batches import EncodedBatch, StartedBatch, bad_rows
from ultimate_embedder.execution.ladder import (
    BATCH_GROWN,
    BATCH_REDUCED,
    BATCH_REDUCED_AFTER_OOM,
    COMPANION_PAUSED,
    COMPANION_TO_CPU,
    COMPANION_TO_GPU,
    FP32_RERUN,
    LADDER,
    WEIGHTS_BACK,
    WITHOUT_WEIGHTS,
    Climbed,
    Companion,
    RanOn,
    Report,
    Situation,
    climb,
)
from ultimate_embedder.execution.packing import layout_of
from ultimate_embedder.execution.placement import move
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import Encoder, LoadedModel, TokenizedTexts
from ultimate_embedder.types import MemorySnapshot
from ultimate_embedder.vectors import shorten

GUESSED_BYTES_PER_TOKEN = 64 * 1024  # for a model whose forward cannot be predicted, until one is measured


NO_ROOM = "the device has no room for the whole batch"


@dataclass(frozen=True)
class _Launched:
    """A batch that was given to a device, or computed by the ladder."""

    fetch: Fetch
    ran_on: tuple[RanOn, ...]
    whole: bool
    """Whether it runs as it was, without the ladder."""

    def climbed(self) -> Climbed:
        """The vectors, when they are there."""
        return Climbed(self.fetch(), self.ran_on)


@dataclass
class Learned:
    """What batches have taught one worker about a model on a device; belongs to one worker at a time."""

    memory: MemoryModel
    allowance: Allowance | None = None


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
    ) -> None:
        """`dim` cuts the vectors; `learned` is from an earlier turn on the device; `is_bad` marks unusable rows.

        `companions` can be asked to make room; `refuges` are where this one goes when it is asked to.
        `packs` lays rows of several lengths end to end, where the model can.
        `place` is lower than that of each companion: it is the order in which workers are locked.
        """
        self.device = device
        self.pauses = 0
        self._companions = companions
        self._refuges = refuges
        self._busy = OrderedLock(f"worker on {device.name}", Rank.WORKER, place)
        self._encoder = encoder
        self._fp32_encoder = fp32_encoder
        self._report = report
        self._dim = dim
        self._is_bad = is_bad or partial(bad_rows, unit_norm=encoder.unit_norm)
        self._packs = packs
        self._reduced = False
        self._moved = False
        self._released = False
        self.learned = learned or Learned(MemoryModel(self._predict))
        """What a worker on the same device needs not learn again."""
        self.learned.memory.predict_peak = self._predict
        self._idle_since = device.mark()

    def rows_that_fit(self, batch: Batch, planned_rows: int | None = None) -> int:
        """How many rows of the batch the device has room for; `planned_rows` is of the batch that it is a rest of."""
        while True:
            device = self.device
            if not device.has_ceiling:
                budget = device.fixed_budget_tokens if self._moved else None
                return max(1, budget // max(1, batch.longest)) if budget else len(batch.rows)
            with device.lock:  # else another model's activations would be taken for weights
                if device is self.device:
                    return self._rows_that_fit(batch, planned_rows or len(batch.rows))

    def _rows_that_fit(self, batch: Batch, planned_rows: int) -> int:
        memory = self.learned.memory
        decision = decide(self.learned.allowance, self.device.hold_ceiling(), memory.reserve_ratio)
        layout: Layout = "packed" if self._packs else "padded"
        fit = memory.most_rows(batch.longest, decision.allowance.activation_bytes, layout) * self.device.lanes
        self.learned.allowance = decision.allowance
        reduced = fit < len(batch.rows)
        if reduced != self._reduced and (reduced or len(batch.rows) == planned_rows):
            self._reduced = reduced
            self._report(
                BATCH_REDUCED if reduced else BATCH_GROWN,
                {
                    "reason": decision.reason if decision.action == "shrink" or not reduced else NO_ROOM,
                    "longest": batch.longest,
                    "planned_rows": planned_rows,
                    "rows": min(fit, planned_rows),
                    "activation_bytes": decision.allowance.activation_bytes,
                },
            )
        return fit

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
        bad = self._is_bad(vectors)
        vectors = self._normalized(vectors)
        fp32_rows = self._rerun_in_fp32(started, vectors, bad)
        waited = started.begun.seconds_since(started.idle_since)
        return EncodedBatch(started, vectors, bad, fp32_rows, waited, seconds)

    def pause(self) -> bool:
        """Take the weights off the device until there is room for them; False if there were none."""
        with self._busy:
            if self._encoder.device != self.device.torch_device:
                return False
            self._encoder.model.to("cpu")
            self.device.release_cache()
            self.pauses += 1
        self._report(COMPANION_PAUSED, {"device": self.device.name, "weight_bytes": self._encoder.weight_bytes})
        return True

    def release_weights(self) -> None:
        """Take the weights off the device while no worker computes; the next batch brings them back."""
        with self.device.lock, self._busy:
            if self.device.has_ceiling and self._encoder.device == self.device.torch_device:
                self._encoder.model.to("cpu")
                self.device.release_workspaces()
                self.device.release_cache()
                self._released = True

    def move_away(self) -> bool:
        """Leave the device for the first refuge with room, else for the CPU."""
        with self._busy:
            before = self.device
            self._encoder.model.to("cpu")
            before.release_cache()
            refuge = next((each for each in self._refuges if move(self._encoder, each)), None)
            if refuge is None:
                self._encoder = self._fp32_encoder()
            self.device, self._moved = refuge or CpuDevice(), True
            self._idle_since = self.device.mark()
            self.learned = Learned(MemoryModel(self._predict))
        self._report(
            COMPANION_TO_GPU if refuge else COMPANION_TO_CPU, {"before": before.name, "after": self.device.name}
        )
        return True

    def _start(self, texts: TokenizedTexts, batch: Batch, planned_rows: int) -> StartedBatch:
        device, idle_since = self.device, self._idle_since
        before = device.hold_ceiling()
        device.reset_peak()
        packed = self._is_packed(texts.lengths[batch.rows])
        predicted = self._predicted(texts, batch.rows, packed)
        begun = device.mark()
        launched = self._run(texts, batch.rows, packed)
        whole = launched.whole
        self._idle_since = device.mark()
        after = device.snapshot()  # the allocator's books: they are ahead of the device, and complete
        learns = whole and device.has_ceiling and device.lanes == 1
        if learns:
            self._learn(texts, batch, packed, before, after)
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
        )

    def _is_packed(self, lengths: np.ndarray) -> bool:
        """Whether rows of these lengths are laid end to end: by rule, where the model can; never by what is faster."""
        return self._packs and bool(lengths.min() != lengths.max()) and self._encoder.can_pack(self.device)

    def _run(self, texts: TokenizedTexts, rows: np.ndarray, packed: bool = False) -> _Launched:
        """Compute the rows, as they are or by the ladder."""
        rungs = LADDER
        if self._weights_are_here():
            try:
                fetch = self._launch(texts, rows, packed)
            except Exception as error:
                if not self.device.is_out_of_memory(error):
                    raise
                error.__traceback__ = None  # it holds the failed activations
            else:
                return _Launched(fetch, (RanOn(self.device.name, self._encoder.dtype, len(rows)),), whole=True)
            self._remember_failure(texts, rows, packed)
        else:
            rungs = WITHOUT_WEIGHTS
        situation = Situation(
            encoder=self._encoder.alone(),
            device=self.device,
            texts=texts,
            rows=rows,
            fp32_encoder=self._fp32_encoder,
            encode_part=lambda part: self._run(texts, part).climbed(),
            companions=self._companions,
        )
        climbed = climb(situation, rungs, self._report)
        return _Launched(lambda: climbed.vectors, climbed.ran_on, whole=False)

    def _launch(self, texts: TokenizedTexts, rows: np.ndarray, packed: bool) -> Fetch:
        batch = self._encoder.batch(texts, rows, packed)
        sent = replace(batch, features=self.device.send(batch.features))
        return self.device.fetch(self._encoder.forward(sent))

    def _weights_are_here(self) -> bool:
        """Whether the weights are on the device; brings them back when there is room for them again."""
        if self._encoder.device == self.device.torch_device:
            return True
        if not move(self._encoder, self.device):
            return False
        if self._released:  # on purpose: nothing changed course
            self._released = False
            return True
        self._report(WEIGHTS_BACK, {"weight_bytes": self._encoder.weight_bytes})
        return True

    def _remember_failure(self, texts: TokenizedTexts, rows: np.ndarray, packed: bool) -> None:
        if self.learned.allowance is None:
            return
        before = self.learned.allowance
        self.learned.allowance = after_failure(before, self._predicted(texts, rows, packed))
        self._report(
            BATCH_REDUCED_AFTER_OOM,
            {
                "rows": len(rows),
                "longest": int(texts.lengths[rows].max()),
                "before": {"activation_bytes": before.activation_bytes},
                "after": {"activation_bytes": self.learned.allowance.activation_bytes},
            },
        )

    def _rerun_in_fp32(self, started: StartedBatch, vectors: np.ndarray, bad: np.ndarray) -> int:
        """Compute unusable vectors again in fp32; `vectors` and `bad` are corrected in place."""
        count = int(bad.sum())
        if not count or all(part.dtype == "float32" for part in started.ran_on):
            return 0
        fp32 = self._fp32_encoder()
        again = fp32.forward(fp32.batch(started.texts, started.rows[bad])).cpu().numpy()
        still_bad = self._is_bad(again)
        vectors[bad] = self._normalized(again)
        bad[np.flatnonzero(bad)] = still_bad
        self._report(FP32_RERUN, {"rows": count, "still_unusable": int(bad.sum())})
        return count

    def _normalized(self, vectors: np.ndarray) -> np.ndarray:
        """Cut to the dimension that was asked for, and of length one in fp32 where the model normalises."""
        if self._dim is None and not self._encoder.unit_norm:
            return vectors
        return shorten(vectors, self._dim)

    def _learn(
        self, texts: TokenizedTexts, batch: Batch, packed: bool, before: MemorySnapshot, after: MemorySnapshot
    ) -> None:
        lengths = texts.lengths[batch.rows]
        used = after.peak_bytes - before.allocated_bytes
        self.learned.memory.observe(_full_rows(lengths, packed), batch.longest, layout_of(lengths, packed), used)
        if after.peak_reserved_bytes > before.reserved_bytes:
            self.learned.memory.observe_reserved(after.peak_bytes, after.peak_reserved_bytes)
        if self.learned.allowance is not None:
            self.learned.allowance = after_success(self.learned.allowance)

    def _predicted(self, texts: TokenizedTexts, rows: np.ndarray, packed: bool) -> int:
        if not self.device.has_ceiling:
            return 0
        lengths = texts.lengths[rows]
        whole = _full_rows(lengths, packed)
        rows_each = whole if self.device.lanes == 1 else math.ceil(whole / self.device.lanes)
        return self.learned.memory.allocated_bytes(rows_each, int(lengths.max()), layout_of(lengths, packed))

    def _predict(self, rows: int, length: int) -> int:
        if not isinstance(self._encoder, Encoder) or not self._encoder.tokenizes:
            return rows * length * GUESSED_BYTES_PER_TOKEN
        return self._encoder.peak_bytes(rows, length)


def _full_rows(lengths: np.ndarray, packed: bool) -> float:
    """The size of a batch in rows of its longest: as many as it has, less the padding that it does without."""
    return float(lengths.sum() / lengths.max()) if packed else float(len(lengths))
