"""Old import path; the name lives in `ultimate_embedder.compat`."""

from processor.ultimate_embedder._engine import UltimateKaggleEmbedderV4

__all__ = ["UltimateKaggleEmbedderV4"]
