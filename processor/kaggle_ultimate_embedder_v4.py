"""The oldest import path; the names live in `ultimate_embedder.compat`."""

from processor.ultimate_embedder._engine import (
    KAGGLE_OPTIMIZED_MODELS,
    AdvancedPreprocessingConfig,
    EnsembleConfig,
    KaggleExportConfig,
    KaggleGPUConfig,
    RerankingConfig,
    UltimateKaggleEmbedderV4,
)

__all__ = [
    "KAGGLE_OPTIMIZED_MODELS",
    "AdvancedPreprocessingConfig",
    "EnsembleConfig",
    "KaggleExportConfig",
    "KaggleGPUConfig",
    "RerankingConfig",
    "UltimateKaggleEmbedderV4",
]
