"""Whether the CPU computes in bf16, and whether that is faster: tried in a child process, which may die of it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ultimate_embedder.devices.trials.run import Trials
from ultimate_embedder.devices.trials.trial import Forward, Trial


@dataclass(frozen=True)
class Bf16Trial:
    """Why bf16 cannot be used here, or how long a forward in it takes, in those of fp32."""

    problem: str | None
    slowdown: float = 0.0


@functools.cache
def try_bf16() -> Bf16Trial:
    """Try it: virtual machines announce AMX and die with an illegal instruction when it is used."""
    with Trials() as trials:
        fp32, bf16 = (trials.run(Trial("forward", ("torch", "cpu", each))) for each in ("fp32", "bf16"))
    if not isinstance(bf16.value, Forward):
        return Bf16Trial(bf16.failure or "it gave no result")
    if not isinstance(fp32.value, Forward):
        return Bf16Trial(None)
    return Bf16Trial(None, bf16.value.milliseconds / max(fp32.value.milliseconds, 1e-6))
