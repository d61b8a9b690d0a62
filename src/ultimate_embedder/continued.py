"""`python -m ultimate_embedder.continued`: the child of `execution/fresh_process.py`, which goes on with a run."""

from __future__ import annotations

import os
import threading

from ultimate_embedder.config import must_check_locks
from ultimate_embedder.errors import UltimateEmbedderError
from ultimate_embedder.events import fan_out
from ultimate_embedder.execution import Continuation, Ended, read_message, write_message
from ultimate_embedder.locks import check_lock_order
from ultimate_embedder.pipeline import continue_run
from ultimate_embedder.stop import StopSwitch

STDIN, STDOUT, STDERR = 0, 1, 2


def main() -> None:
    """Read what is to be done, do it, and say how it ended."""
    channel = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)  # what models print must not get between the events
    if must_check_locks():
        check_lock_order(True)
    work = read_message(STDIN)
    if not isinstance(work, Continuation):
        return
    stop = StopSwitch()
    threading.Thread(target=_listen, args=(stop,), name="listen", daemon=True).start()
    emit = fan_out([lambda event: write_message(channel, event)])
    try:
        with stop.on_signals():
            ended = Ended(continue_run(work, emit, stop))
    except UltimateEmbedderError as error:
        ended = Ended(error=str(error))
    write_message(channel, ended)


def _listen(stop: StopSwitch) -> None:
    """Stop when the parent says so, or is gone."""
    reason = read_message(STDIN)
    stop.stop(reason if isinstance(reason, str) else "the process that started this one has ended")


if __name__ == "__main__":
    main()
    os._exit(0)  # everything is written; cleaning up on a lost card might hang or abort
