"""How fast earlier runs were on this machine, and what notes it."""

from ultimate_embedder.history import stages
from ultimate_embedder.history.file import (
    History,
    PassRecord,
    StageRecord,
    add_to_history,
    model_key,
    read_history,
)
from ultimate_embedder.history.recorder import HistoryRecorder, PassRecorder

__all__ = [
    "History",
    "HistoryRecorder",
    "PassRecord",
    "PassRecorder",
    "StageRecord",
    "add_to_history",
    "model_key",
    "read_history",
    "stages",
]
