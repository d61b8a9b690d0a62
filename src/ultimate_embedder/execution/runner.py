"""Run batches on a seat: as they are where they fit, else by the ladder; what that teaches is remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ultimate_embedder.batching import Detour, MemoryModel
from ultimate_embedder.devices import Fetch
from ultimate_embedder.execution.ladder import (
    BATCH_REDUCED_AFTER_OOM,
    LADDER,
    LASTING,
    NEED_NO_WEIGHTS,
    WITHOUT_WEIGHTS,
    Climbed,
    Companion,
    RanOn,
    Report,
    Rung,
    Situation,
    climb,
    rungs_from,
)
from ultimate_embedder.execution.learned import Learned
from ultimate_embedder.execution.seat import Seat
from ultimate_embedder.models import Encoder, LoadedModel, TokenizedTexts

GUESSED_BYTES_PER_TOKEN = 64 * 1024  # for a model whose forward cannot be predicted, until one is measured
KNOWN = "texts of this length had no room before"
NO_WEIGHTS = "the weights have no room on the device"


@dataclass(frozen=True)
class Launched:
    """A batch that was given to a device, or computed by the ladder."""

    fetch: Fetch
    ran_on: tuple[RanOn, ...]
    whole: bool
    """Whether it runs as it was, without the ladder."""

    def climbed(self) -> Climbed:
        """The vectors, when they are there."""
        return Climbed(self.fetch(), self.ran_on)


class BatchRunner:
    """Runs batches for one worker, whose lock and whose device's lock are held meanwhile."""

    def __init__(
        self,
        seat: Seat,
        fp32_encoder: Callable[[], LoadedModel],
        report: Report,
        companions: Sequence[Companion],
        learned: Learned | None,
    ) -> None:
        self._seat = seat
        self._fp32_encoder = fp32_encoder
        self._report = report
        self._companions = companions
        self.learned = learned or Learned(MemoryModel(self._predict))
        self.learned.memory.predict_peak = self._predict

    def forget(self) -> None:
        """Learn anew: the seat is on another device."""
        self.learned = Learned(MemoryModel(self._predict))

    def predicted_bytes(self, lengths: np.ndarray, packed: bool) -> int:
        """What rows of these lengths take on the device; 0 where memory does not limit batches."""
        device = self._seat.device
        return self.learned.predicted_bytes(lengths, packed, device.lanes) if device.has_ceiling else 0

    def run(self, texts: TokenizedTexts, rows: np.ndarray, packed: bool = False) -> Launched:
        """Compute the rows: as they are, else by the ladder; at once by the rung that their length has needed."""
        longest = int(texts.lengths[rows].max())
        detour = self._detour(longest)
        if detour is not None:
            has_weights = detour.rung in NEED_NO_WEIGHTS or self._seat.bring_weights()
            rungs, why = (rungs_from(detour.rung), KNOWN) if has_weights else (WITHOUT_WEIGHTS, NO_WEIGHTS)
            return self._climb(texts, rows, rungs, why, detour)
        if not self._seat.bring_weights():
            return self._climb(texts, rows, WITHOUT_WEIGHTS, NO_WEIGHTS)
        fetch = self._try_whole(texts, rows, packed)
        if fetch is None:
            self._remember_failure(texts.lengths[rows], packed)
            return self._climb(texts, rows, LADDER, "the whole batch ran out of memory")
        self.learned.forget_way(longest)
        return Launched(fetch, (RanOn(self._seat.device.name, self._seat.encoder.dtype, len(rows)),), whole=True)

    def _detour(self, longest: int) -> Detour | None:
        known = self.learned.detour(longest)
        return None if known is None or known.is_due(self._seat.room_bytes()) else known

    def _try_whole(self, texts: TokenizedTexts, rows: np.ndarray, packed: bool) -> Fetch | None:
        """Give the rows to the device as they are; None if it has no room for them."""
        encoder, device = self._seat.encoder, self._seat.device
        try:
            batch = encoder.batch(texts, rows, packed)
            sent = device.send(batch.features)
            with device.in_use(sent):
                return device.fetch(encoder.forward(replace(batch, features=sent)), sent)
        except Exception as error:
            if not device.is_out_of_memory(error):
                raise
            error.__traceback__ = None  # it holds the failed activations
            return None

    def _climb(
        self, texts: TokenizedTexts, rows: np.ndarray, rungs: tuple[Rung, ...], why: str, detour: Detour | None = None
    ) -> Launched:
        def too_large() -> None:
            if rungs is not LADDER:  # else it is remembered that the whole batch was too large
                self._remember_failure(texts.lengths[rows], packed=False)

        situation = Situation(
            encoder=self._seat.encoder.alone(),
            device=self._seat.device,
            texts=texts,
            rows=rows,
            fp32_encoder=self._fp32_encoder,
            encode_part=lambda part: self.run(texts, part).climbed(),
            streaming=self._seat.streaming,
            companions=self._companions,
            too_large=too_large,
            why=why,
        )
        climbed = climb(situation, rungs, self._report)
        if climbed.rung in LASTING:
            at_once = detour is not None and climbed.rung == detour.rung
            room_bytes = self._seat.room_bytes()
            self.learned.remember_way(situation.longest, climbed.rung, room_bytes, at_once=at_once)
        return Launched(lambda: climbed.vectors, climbed.ran_on, whole=False)

    def _remember_failure(self, lengths: np.ndarray, packed: bool) -> None:
        allowed = self.learned.remember_failure(self.predicted_bytes(lengths, packed))
        if allowed is not None:
            longest = int(lengths.max())
            before, after = (
                {"rows": self.learned.most_rows(longest, packed, each), "activation_bytes": each.activation_bytes}
                for each in allowed
            )
            self._report(
                BATCH_REDUCED_AFTER_OOM,
                {
                    "reason": f"{len(lengths)} x {longest} tokens ran out of memory",
                    "rows": len(lengths),
                    "longest": longest,
                    "before": before,
                    "after": after,
                },
            )

    def _predict(self, rows: int, length: int) -> int:
        encoder = self._seat.encoder
        if not isinstance(encoder, Encoder) or not encoder.tokenizes:
            return rows * length * GUESSED_BYTES_PER_TOKEN
        return encoder.peak_bytes(rows, length, self._seat.device.capability)
