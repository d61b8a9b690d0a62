"""A run as it goes on: `RunState` folds its events into rows, which a terminal, a notebook or a page shows."""

from ultimate_embedder.report.live.rows import (
    Activity,
    CollectionRow,
    DeviceRow,
    LeaseRow,
    NodeRow,
    Notice,
    PassRow,
    RunView,
)
from ultimate_embedder.report.live.screen import Screen
from ultimate_embedder.report.live.state import RunState
from ultimate_embedder.report.live.state_lines import state_lines
from ultimate_embedder.report.live.streams import make_screen
from ultimate_embedder.report.live.watch import Look, RunWatch

__all__ = [
    "Activity",
    "CollectionRow",
    "DeviceRow",
    "LeaseRow",
    "Look",
    "NodeRow",
    "Notice",
    "PassRow",
    "RunState",
    "RunView",
    "RunWatch",
    "Screen",
    "make_screen",
    "state_lines",
]
