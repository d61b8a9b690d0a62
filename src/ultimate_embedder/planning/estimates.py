"""How long, how many sessions, what it costs: pure functions of work, devices and rates. Always a range."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Range:
    """Between these two numbers, as far as is known."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def times(self, low: float, high: float | None = None) -> Range:
        """Multiplied by a number, or by a range of them."""
        return Range(self.low * low, self.high * (low if high is None else high))

    def at_least(self, other: Range) -> Range:
        """The larger one of each end."""
        return Range(max(self.low, other.low), max(self.high, other.high))

    @property
    def middle(self) -> float:
        """The geometric mean: as many times the low end as the high end is of it."""
        return math.sqrt(self.low * self.high) if self.low > 0 else (self.low + self.high) / 2


NOTHING = Range(0.0, 0.0)


@dataclass(frozen=True)
class Estimate:
    """Seconds, and what they rest on."""

    seconds: Range
    basis: str


@dataclass(frozen=True)
class PassLoad:
    """What a pass has to compute: padded tokens of its batches, by the power of two of their length."""

    padded_tokens: Mapping[int, int]
    batches: int = 0
    host_seconds: Range = NOTHING
    """What the host takes beside the devices, such as tokenising; a pass is never faster."""

    @property
    def is_empty(self) -> bool:
        """Whether all of its texts have vectors."""
        return not any(self.padded_tokens.values())


@dataclass(frozen=True)
class Speed:
    """How fast one worker of a kind of device computes a model: padded tokens per second, by length."""

    tokens_per_second: Mapping[int, Range]
    basis: str
    overhead: Range = field(default_factory=lambda: Range(1.0, 1.0))
    """What a pass takes, times what its batches take: waiting, storing, moving weights."""

    def rate(self, length: int) -> Range:
        """At a power of two; where that was not measured, at the nearest that was."""
        known = self.tokens_per_second
        nearest = min(known, key=lambda each: (abs(each.bit_length() - length.bit_length()), each))
        return known[nearest]


@dataclass(frozen=True)
class Lane:
    """Workers of one kind: so many, each at this speed."""

    workers: int
    speed: Speed


def pass_seconds(load: PassLoad, lanes: Sequence[Lane]) -> Estimate | None:
    """How long a pass takes on some devices that share its batches; None if the speed of none of them is known."""
    if load.is_empty:
        return Estimate(NOTHING, "nothing is to be encoded")
    known = [lane for lane in lanes if lane.speed.tokens_per_second]
    if not known or len(known) < len(lanes):
        return None
    seconds = NOTHING
    for length, tokens in load.padded_tokens.items():
        rates = [lane.speed.rate(length).times(lane.workers) for lane in known]
        slow, fast = sum(rate.low for rate in rates), sum(rate.high for rate in rates)
        seconds += Range(tokens / fast, tokens / slow)
    overhead = Range(min(lane.speed.overhead.low for lane in known), max(lane.speed.overhead.high for lane in known))
    seconds = seconds.times(overhead.low, overhead.high).at_least(load.host_seconds)
    return Estimate(seconds, "; ".join(dict.fromkeys(lane.speed.basis for lane in known)))


def in_turn(estimates: Iterable[Estimate]) -> Range:
    """Of what is done one after the other."""
    return sum((each.seconds for each in estimates), NOTHING)


def together(estimates: Iterable[Estimate]) -> Range:
    """Of what is done at the same time, each on its own devices."""
    longest = NOTHING
    for each in estimates:
        longest = longest.at_least(each.seconds)
    return longest


@dataclass(frozen=True)
class Sessions:
    """How many sessions of a limited length the work takes."""

    low: int
    high: int


def count_sessions(total: Range, starting: Range, session_s: float) -> Sessions | None:
    """Sessions for `total` seconds, where each begins with `starting` seconds of these; None if none gets anywhere."""
    if starting.high >= session_s:
        return None
    return Sessions(_sessions(total.low, starting.low, session_s), _sessions(total.high, starting.high, session_s))


def _sessions(total: float, starting: float, session_s: float) -> int:
    return max(1, math.ceil(max(0.0, total - starting) / (session_s - starting)))


def cost(seconds: Range, price_per_hour: float) -> Range:
    """What so many seconds cost."""
    return seconds.times(price_per_hour / 3600)
