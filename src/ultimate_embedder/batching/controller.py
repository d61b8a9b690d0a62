"""How much memory the next batch may use: a pure function of what was, and what is on the device now.

Shrinks at once, before a margin is crossed; grows back step by step when the pressure is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ultimate_embedder.types import MemorySnapshot

HEADROOM = 0.04  # of the ceiling: what a prediction may be wrong by
GROWTH = 1.25  # a step back up
SHRINK_AFTER_FAILURE = 0.7
LOW_MEMORY = 0.1  # of the ceiling: less than this free under it is pressure
NOTICEABLE = 0.02  # changes smaller than this are noise, not decisions

Action = Literal["keep", "shrink", "grow"]


@dataclass(frozen=True)
class Allowance:
    """Bytes that a batch's activations may take, and the share that out-of-memory errors have left of it."""

    activation_bytes: int
    caution: float = 1.0


@dataclass(frozen=True)
class Decision:
    """What the next batch may use, and why that differs from the last one."""

    allowance: Allowance
    action: Action
    reason: str


def low_memory_bytes(snapshot: MemorySnapshot) -> int:
    """Less room than this under the ceiling is pressure."""
    return int(snapshot.ceiling_bytes * LOW_MEMORY)


def decide(previous: Allowance | None, now: MemorySnapshot, reserve_ratio: float) -> Decision:
    """What the next batch may use, seen from between two batches, when only the weights are allocated."""
    caution = previous.caution if previous else 1.0
    room = now.ceiling_bytes * (1 - HEADROOM) - now.outside_bytes
    # the allocator reserves more than is allocated: plan for that ratio, weights included
    wanted = max(0, int((room / reserve_ratio - now.allocated_bytes) * caution))
    if previous is None:
        return Decision(Allowance(wanted, caution), "keep", "first batch")
    before = previous.activation_bytes
    if wanted < before * (1 - NOTICEABLE):
        return Decision(replace(previous, activation_bytes=wanted), "shrink", _why_less(now))
    if wanted > before * (1 + NOTICEABLE):
        step = min(wanted, max(int(before * GROWTH), wanted // 16))
        return Decision(replace(previous, activation_bytes=step), "grow", "memory is free again")
    return Decision(previous, "keep", "nothing changed")


def after_failure(previous: Allowance, failed_bytes: int) -> Allowance:
    """An out-of-memory error: what the failed batch was thought to need is too much; remember it."""
    allowed = int(min(previous.activation_bytes, failed_bytes) * SHRINK_AFTER_FAILURE)
    return Allowance(allowed, max(0.1, previous.caution * SHRINK_AFTER_FAILURE))


def after_success(previous: Allowance) -> Allowance:
    """A batch went well: trust the predictions a little more again."""
    return replace(previous, caution=min(1.0, previous.caution * 1.02))


def _why_less(now: MemorySnapshot) -> str:
    if now.external_bytes > low_memory_bytes(now):
        return f"others hold {now.external_bytes} bytes of {now.device}"
    return "the allocator reserves more than was expected"
