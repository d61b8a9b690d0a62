"""The V4 configuration objects, translated to options; warns about fields that have no effect."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ultimate_embedder.config import OldEnvironment, one_of
from ultimate_embedder.models import MODELS
from ultimate_embedder.types import ModelSpec

KAGGLE_WORKING = "/kaggle/working"
DATA_PARALLEL = "nn.DataParallel"
KAGGLE_OPTIMIZED_MODELS: Mapping[str, ModelSpec] = {spec.key: spec for spec in MODELS if spec.kind == "embedder"}


class DefaultInt(int):
    """A default that can be told from the same number, given."""


class _OldConfig:
    """Warns about options that were set and have no effect. An unknown option is a TypeError."""

    without_effect: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        self._check()
        for option in dataclasses.fields(self):  # type: ignore[arg-type]
            why = self.without_effect.get(option.name)
            if why is not None and getattr(self, option.name) != option.default:
                warnings.warn(f"{type(self).__name__}.{option.name} has no effect: {why}", stacklevel=3)

    def _check(self) -> None:
        """Refuse values that mean nothing."""


@dataclass
class EnsembleConfig(_OldConfig):
    """Which models are fused, how, and how they share the devices."""

    ensemble_models: Sequence[str] = field(default_factory=lambda: ["jina-code-embeddings-1.5b", "bge-m3"])
    model_weights: Mapping[str, float] | None = None
    weighting_strategy: str = "equal"
    aggregation_method: str = "weighted_average"
    sequential_passes: bool = False
    sequential_data_parallel: bool | str = True
    """True: a copy on each GPU, all fed from one queue; "nn.DataParallel": torch's wrapper; False: one GPU."""
    preferred_devices: Sequence[str] | None = None
    exclusive_mode: bool = False
    warm_cache_after_release: bool = False
    parallel_encoding: bool = True
    memory_efficient: bool = True
    allow_missing_companions: bool = False
    """Go on without companions that are neither on this machine nor to be had; the others weigh more then."""

    without_effect: ClassVar[Mapping[str, str]] = {
        "weighting_strategy": "weights are equal, or those of model_weights",
        "memory_efficient": "memory is always predicted",
    }

    def _check(self) -> None:
        if isinstance(self.sequential_data_parallel, str):
            one_of(self.sequential_data_parallel, (DATA_PARALLEL,), "EnsembleConfig.sequential_data_parallel")

    def with_environment(self, environment: OldEnvironment) -> EnsembleConfig:
        """A copy with the `EMBEDDER_*` variables applied."""
        changed = copy.copy(self)  # a new instance would warn again
        changed.sequential_passes |= environment.sequential
        changed.exclusive_mode |= environment.exclusive
        changed.preferred_devices = self.preferred_devices or environment.sequential_devices or None
        if environment.sequential_data_parallel is not None:
            changed.sequential_data_parallel = environment.sequential_data_parallel
        return changed

    @property
    def mode(self) -> str:
        """The `--mode` of the engine."""
        if self.exclusive_mode:
            return "exclusive"
        return "sequential" if self.sequential_passes or not self.parallel_encoding else "simultaneous"

    @property
    def parallelism(self) -> str:
        """How one model uses several GPUs; only models that take turns can be kept to one."""
        if self.sequential_data_parallel == DATA_PARALLEL:
            return "data-parallel"
        return "none" if self.mode == "sequential" and not self.sequential_data_parallel else "replicas"


_MEMORY_DECIDES = "batch sizes follow from the memory of the device"


@dataclass
class KaggleGPUConfig(_OldConfig):
    """Devices, precision and limits."""

    device_count: int = 2
    vram_per_gpu_gb: float = 15.83
    total_vram_gb: float = 31.66
    max_memory_per_gpu: float = 0.8
    precision: str = "fp16"
    base_batch_size: int = DefaultInt(32)
    """At most so many rows per batch, if it is given; memory may lower it."""
    dynamic_batching: bool = True
    max_sequence_length: int = 2048
    backend: str = "pytorch"
    gradient_checkpointing: bool = True
    enable_memory_efficient_attention: bool = True
    enable_torch_compile: bool = False
    enable_mixed_precision: bool = True
    kaggle_environment: bool = True
    output_path: str = KAGGLE_WORKING

    without_effect: ClassVar[Mapping[str, str]] = {
        "device_count": "all GPUs are used; EnsembleConfig.preferred_devices chooses some",
        "vram_per_gpu_gb": "memory is measured",
        "total_vram_gb": "memory is measured",
        "dynamic_batching": _MEMORY_DECIDES,
        "backend": "torch is used",
        "enable_memory_efficient_attention": "torch chooses the attention kernel",
        "enable_torch_compile": "models are not compiled",
        "enable_mixed_precision": "set precision instead",
        "kaggle_environment": "the environment is detected",
    }


@dataclass
class KaggleExportConfig(_OldConfig):
    """What is written, and where."""

    export_numpy: bool = True
    export_jsonl: bool = True
    export_faiss: bool = True
    export_sparse_jsonl: bool = True
    compress_embeddings: bool = True
    working_dir: str = KAGGLE_WORKING
    output_prefix: str = "ultimate_embeddings_v4"

    without_effect: ClassVar[Mapping[str, str]] = {
        "export_faiss": "there is no FAISS export; vectors are exported for Qdrant and as .npy",
        "compress_embeddings": "vectors are not compressed",
    }


@dataclass
class RerankingConfig(_OldConfig):
    """The reranker of `search_with_reranking`."""

    model_name: str = "jina-reranker-v3"
    enable_reranking: bool = False
    top_k_candidates: int = 100
    rerank_top_k: int = 20
    batch_size: int = 32
    trust_remote_code: bool = False
    """Allows the code in the reranker's repository to run, which jina-reranker-v3 needs."""

    without_effect: ClassVar[Mapping[str, str]] = {
        "top_k_candidates": "pass initial_candidates to search_with_reranking()",
        "rerank_top_k": "pass top_k to search_with_reranking()",
        "batch_size": _MEMORY_DECIDES,
    }


@dataclass
class AdvancedPreprocessingConfig(_OldConfig):
    """Accepted without effect; texts are embedded unchanged."""

    enable_text_caching: bool = True
    normalize_whitespace: bool = True

    without_effect: ClassVar[Mapping[str, str]] = {
        "enable_text_caching": "equal texts always share a vector",
        "normalize_whitespace": "texts are embedded unchanged",
    }
