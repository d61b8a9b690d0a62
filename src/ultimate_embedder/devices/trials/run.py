"""Run trials in a child process, and in a new one after each that has died."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import TracebackType

from ultimate_embedder.child import Child, ChildNotStartedError, start_child
from ultimate_embedder.devices.trials.trial import Outcome, Trial

CHILD = "ultimate_embedder.devices.trials.child"
TIMEOUT_S = 120.0  # the first import of torch from a cold disk takes half of that
# as the system describes them; its own words differ from one to the next
SIGNAL_WORDS = {
    "SIGILL": "illegal instruction",
    "SIGSEGV": "invalid memory access",
    "SIGBUS": "bus error",
    "SIGFPE": "arithmetic error",
    "SIGABRT": "aborted",
    "SIGKILL": "killed, perhaps for lack of memory",
}


class Trials:
    """Trials one after the other, in a child that is kept as long as it lives."""

    def __init__(self, module: str = CHILD, timeout_s: float = TIMEOUT_S) -> None:
        self._module = module
        self._timeout_s = timeout_s
        self._open = contextlib.ExitStack()
        self._child: Child | None = None

    def __enter__(self) -> Trials:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and self._child is not None:
            self._child.kill()  # it may be in the middle of a trial
        self._open.close()

    def run(self, trial: Trial) -> Outcome:
        """Do a trial; never raises for what happens in it."""
        try:
            if self._child is None:
                self._child = self._open.enter_context(start_child(self._module, capture_errors=True))
        except ChildNotStartedError as error:
            return Outcome(failure=f"no process could be started: {error}")
        child, expired = self._child, threading.Event()

        def expire() -> None:
            expired.set()
            child.kill()

        timer = threading.Timer(self._timeout_s, expire)
        timer.start()
        try:
            answer = child.receive() if child.send(trial) else None
        finally:
            timer.cancel()
        if isinstance(answer, Outcome):
            return answer
        code = child.wait()
        self._child = None
        if expired.is_set():
            return Outcome(failure=f"no answer within {self._timeout_s:g} s", died=True)
        return Outcome(failure=_last_words(code, child.last_words), died=True)


def _last_words(code: int, words: str) -> str:
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        how = f"the process died of {name}"
        return f"{how} ({SIGNAL_WORDS[name]})" if name in SIGNAL_WORDS else how
    last = words.splitlines()[-1:]
    return ": ".join([f"the process ended with exit code {code}", *last])
