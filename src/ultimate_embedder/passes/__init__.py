"""One model over one collection."""

from ultimate_embedder.passes.encoders import EncoderPool, resolve_models
from ultimate_embedder.passes.modes import PassPlan, plan_passes, require_built
from ultimate_embedder.passes.run import run_pass
from ultimate_embedder.passes.stores import open_store

__all__ = ["EncoderPool", "PassPlan", "open_store", "plan_passes", "require_built", "resolve_models", "run_pass"]
