"""The names that existing notebooks use, on top of the engine. `processor/` gives them their old import paths."""

from ultimate_embedder.compat.configs import (
    KAGGLE_OPTIMIZED_MODELS,
    AdvancedPreprocessingConfig,
    EnsembleConfig,
    KaggleExportConfig,
    KaggleGPUConfig,
    RerankingConfig,
)
from ultimate_embedder.compat.embedder import UltimateKaggleEmbedderV4

__all__ = [
    "KAGGLE_OPTIMIZED_MODELS",
    "AdvancedPreprocessingConfig",
    "EnsembleConfig",
    "KaggleExportConfig",
    "KaggleGPUConfig",
    "RerankingConfig",
    "UltimateKaggleEmbedderV4",
]
