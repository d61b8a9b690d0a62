"""Which rows go into one forward."""

from ultimate_embedder.batching.plan import Batch, plan_batches

__all__ = ["Batch", "plan_batches"]
