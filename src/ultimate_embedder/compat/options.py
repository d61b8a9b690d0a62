"""Translate V4 configuration objects to options of the engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ultimate_embedder.compat.announce import announce
from ultimate_embedder.compat.configs import (
    KAGGLE_WORKING,
    DefaultInt,
    EnsembleConfig,
    KaggleExportConfig,
    KaggleGPUConfig,
)
from ultimate_embedder.config import OldEnvironment, one_of
from ultimate_embedder.errors import UsageError
from ultimate_embedder.models import find_spec
from ultimate_embedder.names import name_problem

logger = logging.getLogger(__name__)
PRECISIONS = {
    "fp16": "auto",
    "bf16": "auto",
    "fp32": "fp32",
    "int8": "int8",
}  # auto: half precision on GPUs, fp32 on a CPU

OLD_BM25 = ("bm25", "qdrant-bm25", "qdrant/bm25")


def ensemble_options(
    model_name: str, enabled: bool, config: EnsembleConfig, companions: Sequence[str]
) -> dict[str, Any]:
    """Models, weights and mode. Companions outside an ensemble get a named vector each."""
    names = [model_name, *(config.ensemble_models if enabled else ()), *companions]
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(_key(name), name)
    models = list(first.values())
    weights = {_key(name): weight for name, weight in (config.model_weights or {}).items()} if enabled else {}
    for name in weights.keys() - {_key(name) for name in models}:
        raise UsageError(
            f"EnsembleConfig.model_weights names {name}, which is not one of the models ({', '.join(models)})."
        )
    return {
        "models": [f"{name}={weights.get(_key(name), 1.0)}" for name in models],
        "mode": config.mode if len(models) > 1 else "single",
        "fusion": config.aggregation_method if enabled else "named",
        "parallelism": config.parallelism if len(models) > 1 else "replicas",
        "device_order": list(config.preferred_devices or ()),
        "warm_cache": config.warm_cache_after_release,
        "allow_missing_companions": config.allow_missing_companions,
    }


def sparse_options(enabled: bool, models: Sequence[str]) -> dict[str, Any]:
    """Sparse vectors: BM25, unless models are named; Qdrant's names for BM25 are known."""
    if not enabled:
        return {}
    words = ["bm25" if name.lower() in OLD_BM25 else f"splade={name}" for name in models or ("bm25",)]
    return {"sparse": list(dict.fromkeys(words))}


def hardware_options(config: KaggleGPUConfig, environment: OldEnvironment, force_cpu: bool) -> dict[str, Any]:
    """Devices, precision and limits."""
    given = None if isinstance(config.base_batch_size, DefaultInt) else config.base_batch_size
    return {
        "batch_rows": given,
        "devices": "cpu" if force_cpu or environment.force_cpu else None,
        "precision": PRECISIONS[one_of(config.precision, tuple(PRECISIONS), "KaggleGPUConfig.precision")],
        "safety_margin": 1 - config.max_memory_per_gpu,
        "token_cap": config.max_sequence_length,
        "gradient_checkpointing": config.gradient_checkpointing,
    }


def output_folder(export: KaggleExportConfig, gpu: KaggleGPUConfig) -> Path:
    """The output folder: as configured, or below the current folder outside Kaggle."""
    if problem := name_problem(export.output_prefix):
        raise UsageError(
            f"KaggleExportConfig(output_prefix={export.output_prefix!r}): it {problem}, and it names a folder. "
            "Give another; working_dir says where that folder is."
        )
    chosen = export.working_dir if export.working_dir != KAGGLE_WORKING else gpu.output_path
    if chosen == KAGGLE_WORKING and not Path(chosen).is_dir():
        announce(logger, f"{chosen} does not exist: this is not Kaggle. Output goes to {Path.cwd()}")
        chosen = str(Path.cwd())
    return Path(chosen) / export.output_prefix


def _key(name: str) -> str:
    spec = find_spec(name)
    return spec.key if spec else name
