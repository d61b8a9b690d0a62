"""The engine: installed, or beside us in a bare clone."""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("ultimate_embedder") is None:  # a bare clone
    sys.path.append(str(Path(__file__).resolve().parents[2] / "src"))

from ultimate_embedder.compat import (
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
