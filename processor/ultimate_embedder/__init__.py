"""Old import path; the names live in `ultimate_embedder.compat`."""

from processor.ultimate_embedder._engine import (
    KAGGLE_OPTIMIZED_MODELS,
    EnsembleConfig,
    KaggleExportConfig,
    KaggleGPUConfig,
    UltimateKaggleEmbedderV4,
)

__all__ = [
    "KAGGLE_OPTIMIZED_MODELS",
    "EnsembleConfig",
    "KaggleExportConfig",
    "KaggleGPUConfig",
    "UltimateKaggleEmbedderV4",
]
