"""`python -m ultimate_embedder.continued`: the child of `execution/fresh_process.py`, which goes on with a run."""

from __future__ import annotations

import contextlib
import threading
import time

from ultimate_embedder.config import must_check_locks
from ultimate_embedder.errors import UltimateEmbedderError
from ultimate_embedder.events import Event, fan_out
from ultimate_embedder.execution import Continuation, Ended
from ultimate_embedder.lock import share_output
from ultimate_embedder.locks import check_lock_order
from ultimate_embedder.messages import claim_pipes, leave, read_message, write_message
from ultimate_embedder.pipeline import continue_run
from ultimate_embedder.stop import StopSwitch

PATIENCE_S = 60.0  # to finish what is under way when the parent is gone


def main() -> None:
    """Read what is to be done, do it, and say how it ended."""
    stdin, channel = claim_pipes()  # what models print must not get between the events
    if must_check_locks():
        check_lock_order(True)
    work = read_message(stdin)
    if not isinstance(work, Continuation):
        return
    stop = StopSwitch()
    threading.Thread(target=_listen, args=(stdin, stop), name="listen", daemon=True).start()

    def send(message: Event | Ended) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone: what is under way is stored all the same
            write_message(channel, message)

    emit = fan_out([send])
    try:
        with share_output(work.config.output, work.lock_token, stop.stop), stop.on_signals():
            ended = Ended(continue_run(work, emit, stop))
    except UltimateEmbedderError as error:
        ended = Ended(error=str(error))
    send(ended)


def _listen(stdin: int, stop: StopSwitch) -> None:
    """Stop when the parent says so, or is gone; then nothing else can end a process whose devices hang."""
    while (reason := read_message(stdin)) is not None:
        stop.stop(str(reason))
    stop.stop("the process that started this one has ended")
    time.sleep(PATIENCE_S)
    leave(1)


if __name__ == "__main__":
    main()
    leave(0)
