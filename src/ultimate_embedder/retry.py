"""Retry temporary errors, with exponential backoff and jitter."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long to retry: waits double from `first_wait_s` to `longest_wait_s`, with jitter."""

    tries: int = 8
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    total_s: float = 300.0


@dataclass(frozen=True)
class Temporary:
    """A temporary error: the reason, the wait that the server asks for, and the most tries that are worth it."""

    reason: str
    wait_s: float | None = None
    tries: int | None = None


def call_with_retries(
    call: Callable[[], Result],
    temporary: Callable[[Exception], Temporary | None],
    on_retry: Callable[[int, float, str], None],
    policy: RetryPolicy,
) -> Result:
    """Call until it succeeds; raises errors that are not temporary, and those that outlast the policy."""
    started = time.monotonic()
    for attempt in range(1, policy.tries + 1):
        try:
            return call()
        except Exception as error:
            passing = temporary(error)
            if passing is None or attempt >= min(policy.tries, passing.tries or policy.tries):
                raise
            wait_s = passing.wait_s if passing.wait_s is not None else _backoff(attempt, policy)
            if time.monotonic() - started + wait_s > policy.total_s:
                raise
        on_retry(attempt, wait_s, passing.reason)
        time.sleep(wait_s)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _backoff(attempt: int, policy: RetryPolicy) -> float:
    # jitter: clients that failed together must not retry together
    return float(min(policy.first_wait_s * 2 ** (attempt - 1), policy.longest_wait_s) * random.uniform(0.5, 1.0))
