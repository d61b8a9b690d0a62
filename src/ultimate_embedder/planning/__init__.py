"""What a run will do, as plain values: passes, mode, stages and steps; and what it will take: memory, time, cost.

Pure; knows neither torch nor files.
"""

from typing import TYPE_CHECKING

from ultimate_embedder.late import late_names
from ultimate_embedder.planning.cluster import (
    CLUSTER_MODE,
    DRIVER,
    NETWORK_BYTES_PER_S,
    UNIT_TEXTS,
    ClusterLoad,
    ClusterShape,
    Limit,
    bottleneck,
    limits_of,
    slowest,
    unit_texts,
    useful_nodes,
)
from ultimate_embedder.planning.estimates import (
    NOTHING,
    Estimate,
    Lane,
    PassLoad,
    Range,
    Sessions,
    Speed,
    cost,
    count_sessions,
    in_turn,
    pass_seconds,
    together,
)
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
from ultimate_embedder.planning.roofline import (
    ROOFLINE_BASIS,
    PeakRates,
    batch_seconds,
    launch_seconds,
)
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
    from ultimate_embedder.planning.forecast import (
        BatchShape,
        CardForecast,
        CardRoom,
        MemoryModels,
        WeightBytes,
        forecast_card,
    )
    from ultimate_embedder.planning.passes import PassPlan, as_candidate, plan_passes
    from ultimate_embedder.planning.speeds import find_records, speed_of, stage_seconds

__all__ = [
    "CLUSTER_MODE",
    "DRIVER",
    "MODES",
    "NETWORK_BYTES_PER_S",
    "NOTHING",
    "ROOFLINE_BASIS",
    "UNIT_TEXTS",
    "WINDOW_ROWS",
    "Assignment",
    "BatchShape",
    "CardForecast",
    "CardRoom",
    "ClusterLoad",
    "ClusterShape",
    "DeviceRoom",
    "Estimate",
    "Lane",
    "Limit",
    "MemoryModels",
    "MemoryNeed",
    "Mode",
    "PassLoad",
    "PassPlan",
    "PeakRates",
    "Place",
    "Range",
    "Rows",
    "Sessions",
    "Speed",
    "Stage",
    "Step",
    "StepResult",
    "Task",
    "TaskResult",
    "Turn",
    "WeightBytes",
    "as_candidate",
    "assign_devices",
    "batch_seconds",
    "bottleneck",
    "choose_mode",
    "cost",
    "count_sessions",
    "find_records",
    "forecast_card",
    "fp16_is_too_narrow",
    "in_turn",
    "launch_seconds",
    "limits_of",
    "pass_seconds",
    "plan_passes",
    "plan_stages",
    "settle_mode",
    "slowest",
    "speed_of",
    "stage_seconds",
    "together",
    "unit_texts",
    "useful_nodes",
]

# imported on first use: --help wants the names of the modes, not numpy or what reads models
_MODULES = {
    "BatchShape": "forecast",
    "CardForecast": "forecast",
    "CardRoom": "forecast",
    "MemoryModels": "forecast",
    "PassPlan": "passes",
    "WeightBytes": "forecast",
    "as_candidate": "passes",
    "find_records": "speeds",
    "forecast_card": "forecast",
    "plan_passes": "passes",
    "speed_of": "speeds",
    "stage_seconds": "speeds",
}

__getattr__ = late_names(__name__, _MODULES)
