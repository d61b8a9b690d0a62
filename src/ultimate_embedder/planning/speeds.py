"""Speeds from what earlier passes took: pure functions of records."""

from __future__ import annotations

from collections.abc import Sequence

from ultimate_embedder.history import PassRecord, StageRecord
from ultimate_embedder.planning.estimates import Estimate, Range, Speed

LEAST_SPREAD = 0.15  # of a time: machines do other things too
ONE_RECORD_SPREAD = 0.25
ABOUT_EQUAL = 1.5  # sizes of a stage that differ by no more than this factor
LEAST_WEIGHT = 0.1  # of the largest record's tokens: in smaller ones, starting takes most of the time


def find_records(
    records: Sequence[PassRecord], model: str, hardware: str, dtype: str, runtime: str, workers: int
) -> list[PassRecord]:
    """Records of a model on such devices; of as many workers, if there are any."""
    wanted = (model, hardware, dtype, runtime)
    found = [each for each in records if (each.model, each.hardware, each.dtype, each.runtime) == wanted]
    return [each for each in found if each.workers == workers] or found


def speed_of(records: Sequence[PassRecord]) -> Speed:
    """The speed of one worker by length, and the spread between records; much shorter passes than others are left out."""
    largest = max(each.tokens for each in records)
    records = [each for each in records if each.tokens >= LEAST_WEIGHT * largest]
    tokens: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for record in records:
        for length, (padded, taken) in record.by_length.items():
            tokens[length] = tokens.get(length, 0) + padded
            seconds[length] = seconds.get(length, 0.0) + taken
    rates = {length: tokens[length] / seconds[length] for length in tokens}
    overhead = sum(each.seconds * each.workers for each in records) / sum(each.computing_seconds for each in records)
    spread = _spread(records, rates, overhead)
    count = f"{len(records)} earlier passes" if len(records) > 1 else "an earlier pass"
    return Speed(
        {length: Range(rate, rate) for length, rate in rates.items()},
        f"{count} of it on this machine",
        overhead=Range(overhead * spread.low, overhead * spread.high),
    )


def _spread(records: Sequence[PassRecord], rates: dict[int, float], overhead: float) -> Range:
    """How much faster and slower passes were than all of them together say."""
    ratios = []
    for record in records:
        expected = sum(padded / rates[length] for length, (padded, _) in record.by_length.items()) * overhead
        ratios.append(record.seconds * record.workers / expected)
    least = LEAST_SPREAD if len(ratios) > 1 else ONE_RECORD_SPREAD
    return Range(min(1 - least, *ratios), max(1 + least, *ratios))


def stage_seconds(records: Sequence[StageRecord], stage: str, hardware: str, units: int) -> Estimate | None:
    """What a stage takes for so many units, by earlier runs of about that size; None if there were none.

    From another size it is between what that took, and that in proportion: it is not known how much of it is fixed.
    """
    known = [each for each in records if (each.stage, each.hardware) == (stage, hardware)]
    if not known or units < 1:
        return None
    nearest = min(max(units / each.units, each.units / units) for each in known)
    alike = [each for each in known if max(units / each.units, each.units / units) <= max(nearest, ABOUT_EQUAL)]
    least = LEAST_SPREAD if len(alike) > 1 else ONE_RECORD_SPREAD
    low = min(each.seconds * min(1.0, units / each.units) for each in alike)
    high = max(each.seconds * max(1.0, units / each.units) for each in alike)
    return Estimate(Range(low * (1 - least), high * (1 + least)), "earlier runs on this machine")
