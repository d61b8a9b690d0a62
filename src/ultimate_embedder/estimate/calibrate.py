"""Measure how fast this machine is for the models of a plan: a few batches of each length that its texts have."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ultimate_embedder.batching import BATCH_TOKENS, length_bucket
from ultimate_embedder.config import ModelChoice, RunConfig
from ultimate_embedder.devices import CPU_BUDGET_TOKENS
from ultimate_embedder.errors import NoVectorsError, StoppedError
from ultimate_embedder.events import DevicesOpened, Emit
from ultimate_embedder.history import PassRecord, PassRecorder
from ultimate_embedder.session import open_session
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.texts import TextEncoder

BATCHES_PER_WORKER = 2  # of each length
LONGEST_S = 60.0  # for a model: a slow one is measured with fewer batches
MOST_SAMPLED = 4096  # texts of a length


@dataclass
class Sample:
    """Some texts of a collection, by the power of two of their length in tokens."""

    texts: dict[int, list[str]]

    @classmethod
    def empty(cls) -> Sample:
        """Nothing yet."""
        return cls({})

    def add(self, texts: Sequence[str], lengths: Sequence[int]) -> None:
        """Keep these, as far as there are not enough of their length."""
        for text, length in zip(texts, lengths, strict=True):
            kept = self.texts.setdefault(length_bucket(length), [])
            if len(kept) < MOST_SAMPLED:
                kept.append(text)


def calibrate(choice: ModelChoice, sample: Sample, config: RunConfig) -> list[PassRecord]:
    """Run a few batches of one model on the devices of this machine, as a run would."""
    records: list[PassRecord] = []
    alone = replace(config, models=(choice,), mode="single", dim=None, overlong="truncate")
    session = open_session(alone, recorder := PassRecorder(records.append, config.backend), StopSwitch())
    recorder(DevicesOpened(devices=session.device_facts()))
    encoder = TextEncoder(session)
    try:
        encoder.load()
        warm = min(sample.texts, default=None)
        if warm is None:
            return []
        _encode(encoder, sample.texts[warm][:2], lambda event: None, LONGEST_S)
        until = time.monotonic() + LONGEST_S
        workers = sum(device.workers for device in session.devices)
        budget = BATCH_TOKENS if session.devices[0].has_ceiling else CPU_BUDGET_TOKENS
        for length in sorted(sample.texts, key=lambda each: -len(sample.texts[each]) * each):
            left = until - time.monotonic()
            if left <= 0:
                break
            rows = max(1, budget // length) * workers * BATCHES_PER_WORKER
            _encode(encoder, sample.texts[length][:rows], recorder, left)
    finally:
        session.end_run()
    return records


def _encode(encoder: TextEncoder, texts: Sequence[str], emit: Emit, left_s: float) -> None:
    with contextlib.suppress(StoppedError, NoVectorsError):  # what was measured until then is good
        encoder.encode(list(texts), emit, StopSwitch(left_s))
