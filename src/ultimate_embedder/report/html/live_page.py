"""The live page of an output: follows its event log and draws the parts of the page, from events alone."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass

from ultimate_embedder import events
from ultimate_embedder.output import Output, link_target
from ultimate_embedder.report.html import live
from ultimate_embedder.report.html.curves import Curves, Drawing
from ultimate_embedder.report.html.live_log import LiveLog
from ultimate_embedder.report.html.page import hues_of
from ultimate_embedder.report.html.timeline import Step, draw_lanes, make_step
from ultimate_embedder.report.live import Look, RunView, RunWatch
from ultimate_embedder.report.replay import UNREADABLE

FIRST_SECONDS = 60.0  # that curves have room for; doubled when these are over
LONGEST_SECONDS = 1e9  # an event that is so much later than the first has a damaged time
MOST_STEPS = 2000


@dataclass(frozen=True)
class LiveParts:
    """The page at one moment: HTML by the name of the part, and what was seen."""

    title: str
    parts: dict[str, str]
    look: Look | None = None


class LivePage:
    """Looks at an output again and again. Not thread-safe: one caller at a time."""

    def __init__(self, output: Output) -> None:
        self._path = output.events_path
        self._folded = _Folded()
        self._watch = RunWatch(output.folder, listen=self._listen)

    def _listen(self) -> events.Emit:
        self._folded = _Folded()
        return self._folded

    def draw(self) -> LiveParts:
        """The page as it is now."""
        if (target := link_target(self._path)) is not None:
            return _nothing(f"{self._path.name} is a link to {target}, and links are not followed.")
        try:
            look = self._watch.look_once()
        except OSError as error:
            return _nothing(f"{self._path.name} cannot be read: {error.strerror}.")
        view, verdict = look.view, look.verdict
        parts = {
            "head": live.draw_head(look),
            "devices": live.draw_devices(look),
            "passes": live.draw_passes(look),
            "activities": "" if verdict.is_over else live.draw_activities(view),
            "timeline": self._folded.draw_timeline(view, live.seconds_of(look)),
            "mitigations": live.draw_notices(view.mitigations, view),
            "warnings": live.draw_notices(view.warnings, view),
            "collections": live.draw_collections(look),
            "log": self._folded.log.draw(),
        }
        return LiveParts(live.title_of(look), parts, look)


def _nothing(why: str) -> LiveParts:
    return LiveParts("no events", {"head": live.draw_problem(why)})


class _Folded:
    """An event sink: what the parts need that `RunView` does not have."""

    def __init__(self) -> None:
        self._begin_anew(0.0)
        self._begun = False

    def _begin_anew(self, start: float) -> None:
        self.log = LiveLog()
        self._drawing = Drawing(Curves(start, FIRST_SECONDS))
        self._steps: deque[Step] = deque(maxlen=MOST_STEPS)

    def __call__(self, event: events.Event) -> None:
        if not self._begun or isinstance(event, events.RunStarted):
            self._begin_anew(event.timestamp)
            self._begun = True
        try:
            self._take(event)
        except UNREADABLE:  # of another version, or damaged; `RunWatch` counts lines that cannot be read
            return

    def _take(self, event: events.Event) -> None:
        self.log(event)
        curves = self._drawing.found
        if curves.ended or not 0 <= event.timestamp - curves.start < LONGEST_SECONDS:
            return
        while event.timestamp - curves.start >= curves.seconds:
            curves.stretch()
        self._drawing.take(event)
        if isinstance(event, events.Mitigated | events.CompanionPlaced):
            times, until = (event.times, event.until) if isinstance(event, events.Mitigated) else (1, None)
            step = make_step(event.kind, event.timestamp, event.details, curves.start, times, until)
            self._steps.append(step)

    def draw_timeline(self, view: RunView, seconds: float) -> str:
        """Every device over the time of the run."""
        if not self._drawing.found.lanes:
            return ""
        drawing = copy.deepcopy(self._drawing)  # what is still going on is drawn as if it ended now
        while drawing.found.seconds < seconds < LONGEST_SECONDS:
            drawing.found.stretch()
        drawing.found.shown_seconds = max(seconds, 0.001)
        hues = hues_of(each.model for each in view.passes)
        return draw_lanes(drawing.finish(), hues, list(self._steps), speed=True)
