"""Go on in a fresh process: a card that is lost to this one may well work in another.

It reads what it has to do from its standard input and writes events to its standard output. This process keeps the lock
of the output, hands the open file on, and passes requests to stop on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ultimate_embedder.child import ChildNotStartedError, on_stop, start_child
from ultimate_embedder.config import RunConfig
from ultimate_embedder.devices import environment_for_child
from ultimate_embedder.events import Emit, Event
from ultimate_embedder.stop import StopSwitch

CHILD = "ultimate_embedder.continued"


@dataclass(frozen=True)
class Continuation:
    """What a fresh process has to do: these collections, on the devices of the options."""

    config: RunConfig
    collections: tuple[str, ...]
    deaths: Mapping[str, int]
    """How often each device has died so far."""
    number: int = 1
    """Of the fresh process in this run, from 1."""
    lock_token: str | None = None
    """On a file system without locks: with it the process can hold the output too."""


@dataclass(frozen=True)
class Ended:
    """How a fresh process has ended: devices that were lost to it, and what prevented it from working at all."""

    lost: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


def run_in_fresh_process(work: Continuation, emit: Emit, stop: StopSwitch, lock_file: int | None) -> Ended:
    """Run a child to its end, with its events as ours. `lock_file` stays open in it, and so does the lock."""
    inherited = [lock_file] if lock_file is not None else []
    try:
        started = start_child(CHILD, inherited_files=inherited, environment=environment_for_child())
        with started as child, on_stop(stop, child.send):
            child.send(work)
            while (message := child.receive()) is not None:
                if isinstance(message, Ended):
                    return message
                if isinstance(message, Event):
                    emit(message)
            return Ended(error=f"it ended with exit code {child.wait()}")
    except ChildNotStartedError as error:
        return Ended(error=f"it cannot be started: {error}")
