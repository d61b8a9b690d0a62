"""A plan, as it is stored and shown."""

from ultimate_embedder.planned.file import read_plan, write_plan
from ultimate_embedder.planned.schema import (
    MissingFromPlan,
    Plan,
    PlannedActivation,
    PlannedCollection,
    PlannedCost,
    PlannedDevice,
    PlannedDisk,
    PlannedLength,
    PlannedMode,
    PlannedModel,
    PlannedPass,
    PlannedSeconds,
    PlannedTime,
    PlannedWords,
    byte_size,
    duration,
)

__all__ = [
    "MissingFromPlan",
    "Plan",
    "PlannedActivation",
    "PlannedCollection",
    "PlannedCost",
    "PlannedDevice",
    "PlannedDisk",
    "PlannedLength",
    "PlannedMode",
    "PlannedModel",
    "PlannedPass",
    "PlannedSeconds",
    "PlannedTime",
    "PlannedWords",
    "byte_size",
    "duration",
    "read_plan",
    "write_plan",
]
