"""The child of a broken machine: AMX is an illegal instruction, fp16 hangs, torch cannot be imported."""

from __future__ import annotations

import os
import signal
import time

from ultimate_embedder.devices import Outcome, Trial
from ultimate_embedder.messages import claim_pipes, leave, read_message, write_message


def attempt(trial: Trial) -> Outcome:
    if trial.job == "torch":
        return Outcome(failure="OSError: libtorch_cpu.so: cannot open shared object file")
    if any(word.startswith("AMX") for word in trial.arguments):
        os.kill(os.getpid(), signal.SIGILL)
    if "fp16" in trial.arguments:
        time.sleep(600)
    if "bf16" in trial.arguments:
        os.write(2, b"first line\nthe library gives up\n")
        leave(3)
    return Outcome()


if __name__ == "__main__":
    stdin, channel = claim_pipes()
    while (asked := read_message(stdin)) is not None:
        write_message(channel, attempt(asked))
    leave(0)
