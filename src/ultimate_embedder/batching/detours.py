"""The way that batches of a length take while memory is short for them: remembered, and doubted now and then.

A length whose single texts ran out of memory goes straight to the rung of the ladder that helped. The better way is
tried again after some batches, at intervals that double, or as soon as the device has noticeably more room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_WAIT = 4  # batches before the better way is tried again
MOST_WAIT = 1024
MORE_ROOM = 1.1  # of the room in which the better way failed: enough to try it at once


@dataclass(frozen=True)
class Detour:
    """A rung that batches of a length go to at once, since the ways before it ran out of memory."""

    rung: str
    room_bytes: int
    """What the model had of the device, weights included, when a better way last failed."""
    wait: int = FIRST_WAIT
    batches: int = 0
    """That took this way since a better one was tried."""

    def is_due(self, room_bytes: int) -> bool:
        """Whether a better way is to be tried."""
        return self.batches >= self.wait or room_bytes > self.room_bytes * MORE_ROOM


def after_detour(known: Detour) -> Detour:
    """A batch went well that way."""
    return replace(known, batches=known.batches + 1)


def after_climb(known: Detour | None, rung: str, room_bytes: int) -> Detour:
    """Everything before that rung has failed: begin there, and wait longer each time that this is found."""
    wait = FIRST_WAIT if known is None else min(MOST_WAIT, known.wait * 2)
    return Detour(rung, room_bytes, wait)
