"""How a run is that is watched from outside: what its events say, and whether anybody still writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ultimate_embedder.lock import Holder
from ultimate_embedder.report.live.lines import rough
from ultimate_embedder.report.live.rows import RunView
from ultimate_embedder.terminal import counted

ELSEWHERE_S = 120.0  # a copy that has an event of the last minutes is of a run that goes on elsewhere

Status = Literal["waiting", "running", "finished", "stopped", "failed", "killed", "not_running_here"]


@dataclass(frozen=True)
class Verdict:
    """The status of a run, and a sentence about it."""

    status: Status
    words: str

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen, as far as can be seen from here."""
        return self.status not in ("waiting", "running")


def judge(view: RunView, holder: Holder, now: float) -> Verdict:
    """How the run is; `now` is the time of this machine, which may not be the one that wrote the events."""
    if view.status == "waiting":
        return Verdict("waiting", "no run has begun here yet")
    if view.status == "running":
        return _unfinished(view, holder, now)
    counts = (
        f"{counted(len(view.collections), 'collection')}, {counted(sum(c.points for c in view.collections), 'point')}"
    )
    words = {
        "finished": f"finished in {rough(view.seconds)}: {counts}",
        "stopped": f"stopped after {rough(view.seconds)}. Run the same command again to resume.",
        "failed": f"failed after {rough(view.seconds)}",
    }
    problem = view.error or next((each.error for each in view.collections if each.error), None)
    return Verdict(view.status, words[view.status] + (f": {problem}" if problem and view.status == "failed" else ""))


def _unfinished(view: RunView, holder: Holder, now: float) -> Verdict:
    quiet = rough(max(0.0, now - (view.at or 0.0)))
    if holder.words is not None:
        return Verdict("running", f"running for {rough(view.seconds)} ({holder.words})")
    if not holder.is_copy:
        words = f"killed: nobody writes to it any more, and its last event, {quiet} ago, is not its end"
        return Verdict("killed", f"{words}. Run the same command again to resume.")
    if abs(now - (view.at or 0.0)) <= ELSEWHERE_S:
        return Verdict("running", f"perhaps running elsewhere: this is a copy, and its latest event is {quiet} old")
    return Verdict("not_running_here", f"no event for {quiet}; the run that wrote this is not running here")
