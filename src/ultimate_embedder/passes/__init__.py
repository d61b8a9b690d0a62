"""Passes: one model over one collection, and how several of them share the devices."""

from ultimate_embedder.passes.encoders import EncoderPool, resolve_models
from ultimate_embedder.passes.modes import PassPlan, candidate, plan_passes
from ultimate_embedder.passes.rerank import rerank
from ultimate_embedder.passes.run import PassRun
from ultimate_embedder.passes.schedule import Stage, run_passes
from ultimate_embedder.passes.stores import open_store

__all__ = [
    "EncoderPool",
    "PassPlan",
    "PassRun",
    "Stage",
    "candidate",
    "open_store",
    "plan_passes",
    "rerank",
    "resolve_models",
    "run_passes",
]
