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
    Companion,
    Report,
    Situation,
    climb,
)
from ultimate_embedder.execution.packing import Packing, layout_of
from ultimate_embedder.execution.placement import move
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import Encoder, LoadedModel, TokenizedTexts
from ultimate_embedder.types import MemorySnapshot
from ultimate_embedder.vectors import shorten

GUESSED_BYTES_PER_TOKEN = 64 * 1024  # for a model whose forward cannot be predicted, until one is measured


@dataclass
class Learned:
    """What batches have taught one worker about a model on a device; belongs to one worker at a time."""

    memory: MemoryModel
    packing: Packing
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
    ) -> None:
        """`dim` cuts the vectors; `learned` is from an earlier turn on the device; `is_bad` marks unusable rows.

        `companions` can be asked to make room; `refuges` are where this one goes when it is asked to.
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
        self._is_bad = is_bad or partial(bad_rows, unit_norm=dim is not None or encoder.unit_norm)
        self.learned = learned or Learned(MemoryModel(self._predict), Packing())
        """What a worker on the same device needs not learn again."""
        self.learned.memory.predict_peak = self._predict
        self._idle_since = device.mark()

    def most_rows(self, longest: int) -> int:
        """How many rows of that length the next batch may have."""
        while True:
            device = self.device
            if device.fixed_budget_tokens is not None:
                return device.fixed_budget_tokens // max(1, longest)
            with device.lock:  # else another model's activations would be taken for weights
                if device is self.device:
                    return self._most_rows(longest)

    def _most_rows(self, longest: int) -> int:
        memory = self.learned.memory
        decision = decide(self.learned.allowance, self.device.hold_ceiling(), memory.reserve_ratio)
        layout: Layout = "packed" if self.learned.packing.settled else "padded"
        rows = memory.most_rows(longest, decision.allowance.activation_bytes, layout)
        if self.learned.allowance is not None and decision.action != "keep":
            before = self.learned.allowance.activation_bytes
            self._report(
                BATCH_REDUCED if decision.action == "shrink" else BATCH_GROWN,
                {
                    "reason": decision.reason,
                    "longest": longest,
                    "before": {"rows": memory.most_rows(longest, before, layout), "activation_bytes": before},
                    "after": {"rows": rows, "activation_bytes": decision.allowance.activation_bytes},
                },
            )
        self.learned.allowance = decision.allowance
        return rows * self.device.lanes

    def encode(self, texts: TokenizedTexts, batch: Batch) -> EncodedBatch:
        """Encode a batch, whatever it takes."""
        return self.finish(self.start(texts, batch))

    def wait_from_here(self) -> None:
        """Count time without work from now on."""
        with self._busy:
            self._idle_since = self.device.mark()

    def start(self, texts: TokenizedTexts, batch: Batch) -> StartedBatch:
        """Give a batch to the device, whatever it takes to make it fit. A card computes it while we do other things."""
        while True:
            device = self.device
            # the device before ourselves: who has it may ask us to make room meanwhile
            with device.lock, self._busy:
                if device is self.device:
                    return self._start(texts, batch)

    def finish(self, started: StartedBatch) -> EncodedBatch:
        """Wait for a batch and check its vectors; what is unusable is computed again."""
        vectors = started.fetch()
        seconds = started.ended.seconds_since(started.begun)
        if started.whole:
            self.learned.packing.note(started.packed, started.lengths, seconds)
        if self._dim is not None:
            vectors = shorten(vectors, self._dim)
        bad = self._is_bad(vectors)
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

    def move_away(self) -> bool:
        """Leave the device for the first refuge with room, else for the CPU."""
        with self._busy:
            before = self.device
            self._encoder.model.to("cpu")
            before.release_cache()
            refuge = next((each for each in self._refuges if move(self._encoder, each)), None)
            if refuge is None:
                self._encoder = self._fp32_encoder()
            self.device = refuge or CpuDevice()
            self._idle_since = self.device.mark()
            self.learned = Learned(MemoryModel(self._predict), self.learned.packing)
        self._report(
            COMPANION_TO_GPU if refuge else COMPANION_TO_CPU, {"before": before.name, "after": self.device.name}
        )
        return True

    def _start(self, texts: TokenizedTexts, batch: Batch) -> StartedBatch:
        device, idle_since = self.device, self._idle_since
        before = device.hold_ceiling()
        device.reset_peak()
        packed = self.learned.packing.choose(self._encoder, device, texts.lengths[batch.rows])
        predicted = self._predicted(texts, batch.rows, packed)
        begun = device.mark()
        fetch, whole = self._run(texts, batch.rows, packed)
        self._idle_since = device.mark()
        after = device.snapshot()  # the allocator's books: they are ahead of the device, and complete
        learns = whole and device.has_ceiling and device.lanes == 1
        if learns:
            self._learn(texts, batch, packed, before, after)
        return StartedBatch(
            texts=texts,
            rows=batch.rows,
            device=device.name,
            dtype=self._encoder.dtype,
            packed=packed and whole,
            whole=whole,
            fetch=fetch,
            predicted_bytes=predicted,
            measured_bytes=after.peak_bytes - before.allocated_bytes if learns else 0,
            before=before,
            after=after,
            idle_since=idle_since,
            begun=begun,
            ended=self._idle_since,
        )

    def _run(self, texts: TokenizedTexts, rows: np.ndarray, packed: bool = False) -> tuple[Fetch, bool]:
        """A way to the vectors of the rows, and whether the batch runs whole, without the ladder."""
        rungs = LADDER
        if self._weights_are_here():
            try:
                fetch = self._launch(texts, rows, packed)
            except Exception as error:
                if not self.device.is_out_of_memory(error):
                    raise
                error.__traceback__ = None  # it holds the failed activations
            else:
                return fetch, True
            self._remember_failure(texts, rows, packed)
        else:
            rungs = WITHOUT_WEIGHTS
        situation = Situation(
            encoder=self._encoder.alone(),
            device=self.device,
            texts=texts,
            rows=rows,
            fp32_encoder=self._fp32_encoder,
            encode_part=lambda part: self._run(texts, part)[0](),
            companions=self._companions,
        )
        vectors = climb(situation, rungs, self._report)
        return lambda: vectors, False

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
        if not count or started.dtype == "float32":
            return 0
        fp32 = self._fp32_encoder()
        again = fp32.forward(fp32.batch(started.texts, started.rows[bad])).cpu().numpy()
        vectors[bad] = shorten(again, self._dim) if self._dim is not None else again
        bad[:] = self._is_bad(vectors)
        self._report(FP32_RERUN, {"rows": count, "still_unusable": int(bad.sum())})
        return count

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
