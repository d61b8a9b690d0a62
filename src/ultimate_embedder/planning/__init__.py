"""What a run will do, as plain values: passes, mode, stages and steps. Pure; knows neither torch nor files."""

from typing import TYPE_CHECKING, Any

from ultimate_embedder.planning.modes import (
    MODES,
    Assignment,
    DeviceRoom,
    MemoryNeed,
    Mode,
    assign_devices,
    choose_mode,
    settle_mode,
)
from ultimate_embedder.planning.precision import fp16_is_too_narrow
from ultimate_embedder.planning.steps import (
    WINDOW_ROWS,
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

if TYPE_CHECKING:
    from ultimate_embedder.planning.passes import PassPlan, as_candidate, plan_passes

__all__ = [
    "MODES",
    "WINDOW_ROWS",
    "Assignment",
    "DeviceRoom",
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
    "fp16_is_too_narrow",
    "plan_passes",
    "plan_stages",
    "settle_mode",
]

# imported on first use: --help wants the names of the modes, not what reads models
_FROM_PASSES = ("PassPlan", "as_candidate", "plan_passes")


def __getattr__(name: str) -> Any:
    if name in _FROM_PASSES:
        from ultimate_embedder.planning import passes

        return getattr(passes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
