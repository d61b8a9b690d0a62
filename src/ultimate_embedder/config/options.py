"""The validated options of a run, made by `options.make_config` and never changed afterwards."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ultimate_embedder.config.fields import FieldChoice
from ultimate_embedder.config.hub import HubAccess
from ultimate_embedder.config.inputs import InMemory, Input
from ultimate_embedder.config.sparse import SparseChoice
from ultimate_embedder.errors import UsageError
from ultimate_embedder.terminal import valid_unicode
from ultimate_embedder.types import HnswGraph

Precision = Literal["auto", "fp32", "fp16", "bf16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Overlong = Literal["truncate", "pool", "split"]
OVERLONG: tuple[Overlong, ...] = get_args(Overlong)
Companions = Literal["spill", "share"]
COMPANIONS: tuple[Companions, ...] = get_args(Companions)

# a value of the lists below; a Literal would repeat the lists
Backend: TypeAlias = str
Parallelism: TypeAlias = str

OLD_MODE_NAMES = {"parallel": "simultaneous"}
ENGINES = ("local", "ray")
BACKENDS = ("torch", "onnx", "openvino")
PARALLELISMS = ("replicas", "data-parallel", "none")
DEFAULT_MODEL = "all-minilm-l6-v2"


@dataclass(frozen=True)
class ModelChoice:
    """A model named by the user (registry key, hub id or folder), and its weight in an ensemble."""

    name: str
    weight: float = 1.0


@dataclass(frozen=True)
class BatchTokens:
    """The most padded tokens of a batch: of one model, or of all (None)."""

    model: str | None
    tokens: int


@dataclass(frozen=True)
class RunConfig:
    """All options of a run. The defaults are those of `make_config`."""

    chunks: tuple[Input, ...]
    output: Path
    name: str | None
    collections: tuple[str, ...]
    fields: FieldChoice
    models: tuple[ModelChoice, ...]
    sparse: tuple[SparseChoice, ...]
    mode: str
    fusion: str
    parallelism: str
    companions: Companions
    release_companions: bool
    batch_tokens: tuple[BatchTokens, ...]
    batch_rows: int | None
    keep_primary: bool
    warm_cache: bool
    no_ensemble: tuple[str, ...]
    force_cpu: tuple[str, ...]
    devices: str
    device_order: tuple[str, ...]
    max_tokens: int | None
    token_cap: int | None
    overlong: Overlong
    overlap: int | None
    dim: int | None
    precision: Precision
    min_cosine: float | None
    backend: str
    gpu0_ceiling_bytes: int | None
    safety_margin: float
    gradient_checkpointing: bool
    allow_missing_companions: bool
    hub: HubAccess
    exports: tuple[str, ...]
    hnsw: HnswGraph | None
    summary: Path | None
    dry_run: bool
    skip_existing: bool
    deadline_s: float | None
    stall_timeout_s: float | None
    fresh: bool
    resume_from: Path | None
    engine: str
    ray_address: str
    ray_nodes: int | None
    ray_wait_s: float
    unit_timeout_s: float
    ship_models: bool
    shared_output: bool
    no_report: bool
    otel: bool
    quiet: bool

    def batch_tokens_for(self, *names: str) -> int | None:
        """The most tokens of a batch of the model that has one of these names; None where the user set nothing."""
        of_all = [hint.tokens for hint in self.batch_tokens if hint.model is None]
        of_this = [hint.tokens for hint in self.batch_tokens if hint.model in names]
        return next(iter([*of_this, *of_all]), None)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The inputs, as far as they are paths: all of them once a run has written the others to files."""
        return tuple(each for each in self.chunks if isinstance(each, Path))

    def as_dict(self) -> dict[str, Any]:
        """The options as plain JSON data, for the summary."""
        return {key: _plain(value) for key, value in dataclasses.asdict(self).items()}


def parse_model_choice(word: str) -> ModelChoice:
    """Read `KEY_OR_PATH` or `KEY_OR_PATH=WEIGHT`."""
    name, equals, weight = word.rpartition("=")
    if not equals or Path(word).is_dir():  # the name of a folder may contain an equals sign
        return ModelChoice(word)
    if not name:
        raise UsageError(f"--models {word}: there is no name before the weight.")
    try:
        value = float(weight)
    except ValueError:
        raise UsageError(f"--models {word}: {weight!r} is not a number. Write KEY=0.7, for example.") from None
    return weighted_choice(name, value)


def weighted_choice(name: str, weight: float) -> ModelChoice:
    """A model with a weight, which must be a positive number."""
    if not 0 < weight < float("inf"):
        raise UsageError(f"--models {name}={weight:g}: a weight must be a positive number.")
    return ModelChoice(name, float(weight))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return valid_unicode(str(value)) if isinstance(value, Path | InMemory | str) else value
