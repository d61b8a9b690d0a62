"""Which rows go into one forward, and how much memory it may take."""

from ultimate_embedder.batching.controller import Allowance, Decision, after_failure, after_success, decide
from ultimate_embedder.batching.memory import EXPECTED_RESERVE_RATIO, Layout, MemoryModel, points_to_predict
from ultimate_embedder.batching.plan import BATCH_TOKENS, Batch, plan_batches, window_budget

__all__ = [
    "BATCH_TOKENS",
    "EXPECTED_RESERVE_RATIO",
    "Allowance",
    "Batch",
    "Decision",
    "Layout",
    "MemoryModel",
    "after_failure",
    "after_success",
    "decide",
    "plan_batches",
    "points_to_predict",
    "window_budget",
]
