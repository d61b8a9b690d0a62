"""The live page of an output: follows its event log and draws the parts of the page, from events alone."""

from __future__ import annotations

import copy
import time
from collections import deque

from ultimate_embedder import events
from ultimate_embedder.output import Output
from ultimate_embedder.report.follow import LogFollower
from ultimate_embedder.report.html import live
from ultimate_embedder.report.html.live_log import LiveLog
from ultimate_embedder.report.html.page import hues_of
from ultimate_embedder.report.html.rollup import UNREADABLE, RollUp, RollUpReader
from ultimate_embedder.report.html.timeline import Step, draw_lanes, make_step
from ultimate_embedder.report.live import RunState, RunView

FIRST_SECONDS = 60.0  # that curves have room for; doubled when they are over
LONGEST_SECONDS = 1e9
MOST_STEPS = 2000


class LivePage:
    """Not thread-safe: one caller at a time."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._follower = LogFollower(output.events_path)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._state, self._log = RunState(), LiveLog()
        self._curves: RollUpReader | None = None
        self._steps: deque[Step] = deque(maxlen=MOST_STEPS)
        self._damaged_lines = 0
