"""Watch a run from outside, by its `events.jsonl` alone."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ultimate_embedder.events import Emit
from ultimate_embedder.lock import Holder, find_holder
from ultimate_embedder.output import Output
from ultimate_embedder.report.live.follow import Follower
from ultimate_embedder.report.live.rows import RunView
from ultimate_embedder.report.live.state import RunState
from ultimate_embedder.report.live.verdict import Verdict, judge
from ultimate_embedder.report.said import Speaker
from ultimate_embedder.terminal import printable

MOST_SAID = 20
LONGEST_LINE = 2000
SURE_S = 2.0  # a run lets go of its output a moment before it writes its last event


@dataclass(frozen=True)
class Look:
    """What was seen of a run at one moment."""

    folder: Path
    view: RunView
    verdict: Verdict
    holder: Holder
    damaged_lines: int
    said: tuple[str, ...] = ()
    """What a run says of the events since the last look: the latest lines."""
    unsaid: int = 0
    """Lines before them."""

    def as_dict(self) -> dict[str, Any]:
        """What was seen as plain JSON data."""
        about = {"status": self.verdict.status, "words": self.verdict.words, "held_by": self.holder.words}
        return {**self.view.as_dict(), **about, "is_copy": self.holder.is_copy, "damaged_lines": self.damaged_lines}


@dataclass
class RunWatch:
    """Looks at an output again and again."""

    folder: Path
    clock: Callable[[], float] = time.time
    listen: Callable[[], Emit] = lambda: lambda event: None
    """Makes what else is told of every event; once for each log, as one that is another is read from its beginning."""
    _state: RunState = field(default_factory=RunState)
    _speaker: Speaker = field(default_factory=Speaker)
    _unheld_since: float | None = None

    def __post_init__(self) -> None:
        self._follower = Follower(Output(self.folder).events_path)
        self._listener = self.listen()

    def look(self) -> Look:
        """Read what was added, and see whether the run is still going on. Raises `OSError`."""
        holder = find_holder(self.folder)  # before its last events are read
        said, count = self._read()
        now = self.clock()
        # what nobody writes to any more stands still; and clocks of machines may differ
        view = self._state.view(now if holder.words is not None else None)
        verdict = self._judge(view, holder, now)
        return Look(self.folder, view, verdict, holder, self._follower.damaged_lines, tuple(said), count - len(said))

    def look_once(self, wait: Callable[[float], None] = time.sleep) -> Look:
        """The same; where nobody seems to write any more, after a moment in which the last events may come."""
        look = self.look()
        until = self.clock() + SURE_S
        while look.verdict.status == "running" and self._unheld_since is not None and self.clock() < until:
            wait(0.2)
            look = self.look()
        return look

    def _read(self) -> tuple[deque[str], int]:
        """Fold what was added; gives the latest lines about it, and how many there were."""
        if self._follower.is_another():
            # not shown before it has caught up: the log of a long run is written anew now and then
            state, speaker = RunState(after=self._state), Speaker()
            self._listener = self.listen()
        else:
            state, speaker = self._state, self._speaker
        said: deque[str] = deque(maxlen=MOST_SAID)
        count = 0
        for event in self._follower.read():
            state(event)
            self._listener(event)
            for line, _ in speaker.lines(event):
                said.append(printable(line[:LONGEST_LINE], lines=True))
                count += 1
        # the same run in a log that was written anew: all of it was said
        if state.started_at == self._state.started_at and state is not self._state:
            said.clear()
            count = 0
        self._state, self._speaker = state, speaker
        return said, count

    def _judge(self, view: RunView, holder: Holder, now: float) -> Verdict:
        verdict = judge(view, holder, now)
        if verdict.status != "killed":
            self._unheld_since = None
            return verdict
        if self._unheld_since is None:
            self._unheld_since = now
        if now - self._unheld_since >= SURE_S:
            return verdict
        return Verdict("running", "running, or just ended: nobody holds the output")
