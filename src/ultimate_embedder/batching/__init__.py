"""Which rows go into one forward, and how much memory it may take."""

from ultimate_embedder.batching.controller import Allowance, Decision, after_failure, after_success, decide
from ultimate_embedder.batching.detours import Detour, after_climb, after_detour
from ultimate_embedder.batching.lengths import LENGTH_EDGES, add_lengths, count_lengths
from ultimate_embedder.batching.memory import (
    EXPECTED_RESERVE_RATIO,
    Layout,
    MemoryModel,
    length_bucket,
    points_to_predict,
)
from ultimate_embedder.batching.plan import (
    BATCH_TOKENS,
    HOST_S_PER_LAYER,
    Batch,
    BatchLimits,
    card_batch_tokens,
    plan_batches,
    window_budget,
)

__all__ = [
    "BATCH_TOKENS",
    "EXPECTED_RESERVE_RATIO",
    "HOST_S_PER_LAYER",
    "LENGTH_EDGES",
    "Allowance",
    "Batch",
    "BatchLimits",
    "Decision",
    "Detour",
    "Layout",
    "MemoryModel",
    "add_lengths",
    "after_climb",
    "after_detour",
    "after_failure",
    "after_success",
    "card_batch_tokens",
    "count_lengths",
    "decide",
    "length_bucket",
    "plan_batches",
    "points_to_predict",
    "window_budget",
]
