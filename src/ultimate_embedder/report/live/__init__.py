"""A run as it goes on: `RunState` folds its events into rows, which a terminal, a notebook or a page shows."""

from ultimate_embedder.report.live.rows import (
    Activity,
    CollectionRow,
    DeviceRow,
    LeaseRow,
    Notice,
    PassRow,
    RunView,
)
from ultimate_embedder.report.live.state import RunState

__all__ = [
    "Activity",
    "CollectionRow",
    "DeviceRow",
    "LeaseRow",
    "Notice",
    "PassRow",
    "RunState",
    "RunView",
]
