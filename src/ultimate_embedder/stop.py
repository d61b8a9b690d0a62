"""Stop a run: deadline, Ctrl-C, SIGTERM or SIGHUP. Batches in flight are finished and stored."""

from __future__ import annotations

import contextlib
import datetime
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import TypeVar

from ultimate_embedder.errors import StoppedError, UsageError

LONGEST_RESERVE_S = 30.0  # to finish a batch, flush the store and write the summary before the deadline
RESERVE_SHARE = 0.05
_abandoned: list[threading.Thread] = []
Result = TypeVar("Result")
_UNITS = {"h": 3600, "m": 60, "s": 1}


class StopSwitch:
    """Checked between batches. `reason` is None as long as the run may continue."""

    def __init__(self, deadline_s: float | None = None) -> None:
        self._reason: str | None = None
        self._until: float | None = None
        if deadline_s is not None:
            # monotonic: setting the wall clock back must not prolong a run
            reserve = min(LONGEST_RESERVE_S, RESERVE_SHARE * deadline_s)
            self._until = time.monotonic() + deadline_s - reserve

    @property
    def reason(self) -> str | None:
        """Why the run must stop, or None."""
        if self._reason is None and self._until is not None and time.monotonic() >= self._until:
            self._reason = "the deadline is near"
        return self._reason

    def stop(self, reason: str) -> None:
        """Start no more batches from now on."""
        self._reason = self._reason or reason

    def check(self) -> None:
        """Raise `StoppedError` if the run must stop."""
        if self.reason is not None:
            raise StoppedError(self.reason)

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Stop the run on the first Ctrl-C, SIGTERM or SIGHUP; a second Ctrl-C interrupts at once, as usual."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can handle signals
            return

        def flip(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, before[signal.SIGINT])
            self.stop(f"interrupted by {signal.Signals(number).name}")

        before = {number: signal.signal(number, flip) for number in _stop_signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _stop_signals() -> list[signal.Signals]:
    """What ends a process from outside; no hangup on Windows, nor where nohup had it ignored."""
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:
        return [signal.SIGINT, signal.SIGTERM]
    return [signal.SIGINT, signal.SIGTERM, hangup]


def run_in_time(job: Callable[[], Result], timeout_s: float | None) -> Result:
    """What a job gives that asks a device; raises `TimeoutError` if it takes longer, and abandons it."""
    if timeout_s is None:
        return job()
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(job())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="in-time", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not outcome.done():
        abandon([thread])
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return outcome.result()


@contextlib.contextmanager
def looking(look: Callable[[], bool], every_s: float, name: str) -> Iterator[None]:
    """During the block, look again and again on a thread of its own, as long as `look` says so."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s) and look():
            pass

    thread = threading.Thread(target=watch, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def abandon(threads: Iterable[threading.Thread]) -> None:
    """Remember threads that nobody waits for any more: they are blocked in the driver of a device that hangs."""
    _abandoned.extend(threads)


def has_abandoned_threads() -> bool:
    """Whether such a thread is still blocked: what ends the process must not wait for its driver."""
    return any(thread.is_alive() for thread in _abandoned)


def parse_deadline(word: str | float, option: str = "--deadline") -> float:
    """Seconds from now: a number, a duration (`11h30m`, `90s`), or until a clock time (`18:30`, today or tomorrow)."""
    if not isinstance(word, str):
        if not 0 <= word < float("inf"):
            raise UsageError(f"{option} {word}: must be a number of seconds, at least 0.")
        return float(word)
    if clock := re.fullmatch(r"(\d{1,2}):(\d{2})", word):
        now = datetime.datetime.now()
        if int(clock[1]) < 24 and int(clock[2]) < 60:
            then = now.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
            return (then - now).total_seconds() % (24 * 3600)
    seconds = _seconds(word)
    if seconds is None:
        raise UsageError(f"{option} {word}: write a duration (11h30m, 45m, 90s) or a clock time (18:30).")
    return seconds


def parse_duration(word: str | float, option: str) -> float:
    """Seconds: a number, or a duration (`1h30m`, `90s`); more than none."""
    seconds = _seconds(word) if isinstance(word, str) else float(word)
    if seconds is None or not 0 < seconds < float("inf"):
        raise UsageError(f"{option} {word}: write a duration, such as 1h30m, 45m or 90s.")
    return seconds


def _seconds(word: str) -> float | None:
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", word)
    if not parts or "".join(number + unit for number, unit in parts) != word:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
