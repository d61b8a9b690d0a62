"""A plan, as it is stored and shown."""

from ultimate_embedder.planned.file import read_plan, write_plan
from ultimate_embedder.planned.schema import (
    MissingFromPlan,
    Plan,
    PlannedActivation,
    PlannedCluster,
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
    duration,
    two_digits,
)

__all__ = [
    "MissingFromPlan",
    "Plan",
    "PlannedActivation",
    "PlannedCluster",
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
    "duration",
    "read_plan",
    "two_digits",
    "write_plan",
]
