"""What a run will do, as plain values: passes, mode, stages and steps. Pure; knows neither torch nor files."""

from ultimate_embedder.planning.disk import DiskNeed
from ultimate_embedder.planning.modes import (
    MODES,
    MemoryNeed,
    Mode,
    assign_devices,
    choose_mode,
)
from ultimate_embedder.planning.passes import PassPlan, as_candidate, plan_passes
from ultimate_embedder.planning.steps import (
    DeviceRoom,
    Place,
    Rows,
    Stage,
    Step,
    StepResult,
    Task,
    TaskResult,
    Turn,
    plan_stages,
)

__all__ = [
    "MODES",
    "DeviceRoom",
    "DiskNeed",
    "MemoryNeed",
    "Mode",
    "PassPlan",
    "Place",
    "Rows",
    "Stage",
    "Step",
    "StepResult",
    "Task",
    "TaskResult",
    "Turn",
    "as_candidate",
    "assign_devices",
    "choose_mode",
    "plan_passes",
    "plan_stages",
]
