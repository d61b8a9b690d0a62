"""How fast the devices of a plan are for a model: from earlier runs, from a calibration, or from a roofline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ultimate_embedder.batching import BATCH_TOKENS, HOST_S_PER_LAYER
from ultimate_embedder.devices import DescribedDevice
from ultimate_embedder.estimate.counts import PassCounts
from ultimate_embedder.history import PassRecord
from ultimate_embedder.models import Encoder
from ultimate_embedder.planning import (
    NOTHING,
    ROOFLINE_BASIS,
    Lane,
    PassLoad,
    PeakRates,
    Range,
    Speed,
    batch_seconds,
    find_records,
    launch_seconds,
    speed_of,
)

UNKNOWN = Speed({}, "")
HALF = ("float16", "bfloat16")
SPARE = Range(1.0, 1.1)  # assumed: what a pass takes beside its batches, where that was not measured
OTHER_HOST = Range(0.5, 2.0)  # assumed: how long another host takes for what this one was measured at
CPU_EFFICIENCY = Range(0.45, 1.1)  # assumed: of what a plain matrix product reaches
CPU_BASIS = "a matrix product timed on this machine, of which 45 to 110 % are assumed to be reached"
PRODUCT = (256, 384, 1536)  # rows, inner and outer: of the size that a small model has
TIMED_S = 0.2
COUNTED_LENGTHS = 2  # a count of all kernels takes a second


@dataclass(frozen=True)
class Speeds:
    """What is known of speeds."""

    records: Sequence[PassRecord]
    runtime: str = "torch"
    calibrated: Mapping[str, Sequence[PassRecord]] = field(default_factory=dict)
    """By key of the model."""

    def lane(
        self, device: DescribedDevice, model: str, dtype: str, encoder: Encoder, counts: PassCounts, workers: int
    ) -> Lane:
        """One device of a pass whose batches `workers` share: how fast it is, by the best that is known."""
        measured = find_records(self.calibrated.get(model, ()), model, device.hardware, dtype, self.runtime, workers)
        if measured:
            return Lane(device.workers, _calibrated(measured))
        earlier = find_records(self.records, model, device.hardware, dtype, self.runtime, workers)
        if earlier:
            return Lane(device.workers, speed_of(earlier))
        if device.card is not None:
            return Lane(device.workers, _on_card(device, dtype, encoder, counts))
        if not device.has_ceiling and self.runtime == "torch" and dtype == "float32":
            return Lane(device.workers, self._on_cpu(encoder, counts))
        return Lane(device.workers, UNKNOWN)

    def _on_cpu(self, encoder: Encoder, counts: PassCounts) -> Speed:
        rates = PeakRates(self._host_flops, float("inf"))

        def seconds(rows: int, length: int) -> Range:
            taken = encoder.forward_cost(rows, length, None).seconds(rates.flops, rates.bandwidth)
            return Range(taken / CPU_EFFICIENCY.high, taken / CPU_EFFICIENCY.low)

        return Speed(_by_length(counts, seconds), CPU_BASIS, SPARE)

    @cached_property
    def _host_flops(self) -> float:
        """Operations per second of one core, in a product of matrices."""
        import torch

        rows, inner, outer = PRODUCT
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            left, right = torch.ones(rows, inner), torch.ones(inner, outer)
            torch.mm(left, right)
            began, products = time.perf_counter(), 0
            while (taken := time.perf_counter() - began) < TIMED_S:
                torch.mm(left, right)
                products += 1
        finally:
            torch.set_num_threads(before)
        return 2 * rows * inner * outer * max(1, products) / taken


def _calibrated(records: Sequence[PassRecord]) -> Speed:
    """What a calibration measured: batches, without what goes on around them."""
    measured = speed_of(records)
    spread = {length: Range(rate.low * 0.85, rate.high * 1.15) for length, rate in measured.tokens_per_second.items()}
    return Speed(spread, "batches calibrated on this machine", SPARE)


def _on_card(device: DescribedDevice, dtype: str, encoder: Encoder, counts: PassCounts) -> Speed:
    card = device.card
    if card is None:
        return UNKNOWN
    rates = PeakRates(card.half_flops if dtype in HALF else card.fp32_flops, card.bandwidth)

    def seconds(rows: int, length: int) -> Range:
        return batch_seconds(encoder.forward_cost(rows, length, device.capability), rates)

    return Speed(_by_length(counts, seconds), ROOFLINE_BASIS, SPARE)


def _by_length(counts: PassCounts, seconds: Callable[[int, int], Range]) -> dict[int, Range]:
    """Padded tokens per second, for batches of the size that the plan has at the lengths with most of the tokens.

    Others are taken to be as fast as the nearest of these: the time per token changes slowly with the length.
    """
    rates = {}
    for length, _ in sorted(counts.padded_by_length, key=lambda each: -each[1])[:COUNTED_LENGTHS]:
        rows = max([shape.rows for shape in counts.shapes if length // 2 < shape.length <= length] or [1])
        taken = seconds(rows, length)
        rates[length] = Range(rows * length / taken.high, rows * length / taken.low)
    return rates


def pass_load(
    counts: PassCounts, encoder: Encoder, devices: Sequence[DescribedDevice], lanes: Sequence[Lane]
) -> PassLoad:
    """What a pass has to compute, and what the host takes for it where cards compute."""
    host = NOTHING
    if all(device.has_ceiling for device in devices) and any(ROOFLINE_BASIS in lane.speed.basis for lane in lanes):
        here = all(device.here for device in devices)
        spread = Range(0.9, 1.2) if here else OTHER_HOST
        tokenizing = Range(counts.tokenize_seconds * spread.low, counts.tokenize_seconds * spread.high)
        host = tokenizing.at_least(_launching(counts, encoder, devices[0]))
    return PassLoad(dict(counts.padded_by_length), counts.batches, host)


def _launching(counts: PassCounts, encoder: Encoder, device: DescribedDevice) -> Range:
    """What the host takes to launch all batches: cards share it."""
    if not counts.padded_by_length:
        return NOTHING
    length = counts.padded_by_length[-1][0]
    forward = encoder.forward_cost(max(1, BATCH_TOKENS // length), length, device.capability)
    taken = launch_seconds(forward, encoder.layers * HOST_S_PER_LAYER) * counts.batches
    return Range(taken * OTHER_HOST.low, taken * OTHER_HOST.high)
