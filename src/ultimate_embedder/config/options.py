"""The options of a run: validated once, here, and never changed afterwards."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ultimate_embedder.config.hub import HubAccess, hub_access
from ultimate_embedder.config.words import (
    at_least,
    existing_folder,
    one_of,
    parse_share,
    parse_size,
    some_words,
    split_words,
)
from ultimate_embedder.errors import UsageError
from ultimate_embedder.output import Output
from ultimate_embedder.stop import parse_deadline

Mode = Literal["auto", "single", "simultaneous", "sequential", "exclusive"]
Precision = Literal["auto", "fp32", "fp16", "int8"]
Backend = Literal["torch", "onnx", "openvino"]
ExportKind = Literal["npy", "parquet", "jsonl", "qdrant"]
FusionMethod = Literal["named", "concat", "weighted_average"]
Parallelism = Literal["replicas", "data-parallel", "none"]

MODES: tuple[Mode, ...] = get_args(Mode)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
BACKENDS: tuple[Backend, ...] = get_args(Backend)
EXPORT_KINDS: tuple[ExportKind, ...] = get_args(ExportKind)
FUSIONS: tuple[FusionMethod, ...] = get_args(FusionMethod)
PARALLELISMS: tuple[Parallelism, ...] = get_args(Parallelism)
DEFAULT_EXPORTS: tuple[ExportKind, ...] = ("npy", "parquet", "qdrant")  # JSON Lines are large and slow by nature
OLD_MODE_NAMES = {"parallel": "simultaneous"}
DEFAULT_MODEL = "all-minilm-l6-v2"
DEVICES_VARIABLE = "ULTIMATE_EMBEDDER_DEVICES"  # for notebooks, where nobody types --devices
GPU0_CEILING_BYTES = 12 * 10**9
SAFETY_MARGIN = 0.08


@dataclass(frozen=True)
class ModelChoice:
    """A model the user asked for, by registry key or folder, and its weight in an ensemble."""

    name: str
    weight: float = 1.0


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run does."""

    chunks: Path
    output: Path
    collections: tuple[str, ...] = ()
    models: tuple[ModelChoice, ...] = (ModelChoice(DEFAULT_MODEL),)
    mode: Mode = "auto"
    fusion: FusionMethod = "named"
    parallelism: Parallelism = "replicas"
    keep_primary: bool = False
    warm_cache: bool = False
    no_ensemble: tuple[str, ...] = ()
    force_cpu: tuple[str, ...] = ()
    devices: str = "auto"
    device_order: tuple[str, ...] = ()
    max_tokens: int | None = None
    token_cap: int | None = None
    dim: int | None = None
    precision: Precision = "auto"
    backend: Backend = "torch"
    gpu0_ceiling_bytes: int = GPU0_CEILING_BYTES
    safety_margin: float = SAFETY_MARGIN
    gradient_checkpointing: bool = False
    allow_missing_companions: bool = False
    hub: HubAccess = field(default_factory=HubAccess)
    exports: tuple[ExportKind, ...] = DEFAULT_EXPORTS
    summary: Path | None = None
    dry_run: bool = False
    skip_existing: bool = False
    deadline_s: float | None = None
    fresh: bool = False
    resume_from: Path | None = None

    @property
    def summary_path(self) -> Path:
        """Where the summary goes: the path that was asked for, else into the output folder."""
        return self.summary or Output(self.output).summary_path

    def as_dict(self) -> dict[str, Any]:
        """The options as plain JSON data, for the summary."""
        return {key: _plain(value) for key, value in dataclasses.asdict(self).items()}


def make_config(
    chunks: str | Path,
    output: str | Path,
    *,
    collections: str | Iterable[str] | None = None,
    models: str | Sequence[str] = (DEFAULT_MODEL,),
    mode: str = "auto",
    fusion: str = "named",
    parallelism: str = "replicas",
    keep_primary: bool = False,
    warm_cache: bool = False,
    no_ensemble: str | Iterable[str] = (),
    force_cpu: str | Iterable[str] = (),
    devices: str | None = None,
    device_order: str | Iterable[str] = (),
    max_tokens: int | None = None,
    token_cap: int | None = None,
    dim: int | None = None,
    precision: str = "auto",
    backend: str | None = None,
    gpu0_ceiling: str | int = GPU0_CEILING_BYTES,
    safety_margin: str | float = SAFETY_MARGIN,
    gradient_checkpointing: bool = False,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    refresh_cache: bool = False,
    trust_remote_code: str | Iterable[str] = (),
    allow_missing_companions: bool = False,
    exports: str | Iterable[str] = DEFAULT_EXPORTS,
    summary: str | Path | None = None,
    dry_run: bool = False,
    skip_existing: bool = False,
    deadline: str | None = None,
    fresh: bool = False,
    resume_from: str | Path | None = None,
) -> RunConfig:
    """Turn what the user wrote into a valid `RunConfig`, or say which word is wrong and what it may be."""
    chunks, output = Path(chunks), Path(output)
    if not chunks.exists():
        raise UsageError(f"{chunks} does not exist. Give the folder that holds your chunk files.")
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output} is a file. Give a folder, or a name that is still free.")
    if output.resolve() == chunks.resolve():
        raise UsageError(f"--output {output} is the chunk folder itself. Give another folder.")
    if output.is_dir() and not Output(output).lock_path.exists() and any(output.glob("*_chunks.json")):
        raise UsageError(f"--output {output} holds chunk files. Give a folder of its own, so that none is overwritten.")
    if summary is not None and Path(summary).is_dir():
        raise UsageError(f"--summary {summary} is a folder. Give the name of a file.")
    if fresh and resume_from is not None:
        raise UsageError("--fresh and --resume-from contradict each other. Drop one.")
    if fresh and skip_existing:
        raise UsageError("--fresh and --skip-existing contradict each other. Drop one.")
    return RunConfig(
        chunks=chunks,
        output=output,
        collections=some_words(collections, "--collections") if collections is not None else (),
        models=_models(models, mode),
        mode=one_of(OLD_MODE_NAMES.get(mode, mode), MODES, "--mode"),
        fusion=one_of(fusion, FUSIONS, "--fusion"),
        parallelism=one_of(parallelism, PARALLELISMS, "--parallelism"),
        keep_primary=keep_primary,
        warm_cache=warm_cache,
        no_ensemble=some_words(no_ensemble, "--no-ensemble"),
        force_cpu=some_words(force_cpu, "--force-cpu"),
        devices=devices or os.environ.get(DEVICES_VARIABLE) or "auto",
        device_order=some_words(device_order, "--device-order"),
        max_tokens=at_least(max_tokens, 8, "--max-tokens"),
        token_cap=at_least(token_cap, 8, "--token-cap"),
        dim=at_least(dim, 1, "--dim"),
        precision=one_of(precision, PRECISIONS, "--precision"),
        backend=_backend(backend, precision),
        gpu0_ceiling_bytes=parse_size(str(gpu0_ceiling), "--gpu0-ceiling"),
        safety_margin=parse_share(safety_margin, "--safety-margin"),
        gradient_checkpointing=gradient_checkpointing,
        allow_missing_companions=allow_missing_companions,
        hub=hub_access(cache_dir=cache_dir, offline=offline, refresh=refresh_cache, trusted=trust_remote_code),
        exports=_exports(exports),
        summary=Path(summary) if summary is not None else None,
        dry_run=dry_run,
        skip_existing=skip_existing,
        deadline_s=parse_deadline(deadline) if deadline is not None else None,
        fresh=fresh,
        resume_from=existing_folder(resume_from, "--resume-from"),
    )


def _models(words: str | Sequence[str], mode: str) -> tuple[ModelChoice, ...]:
    chosen = tuple(parse_model_choice(word) for word in split_words(words))
    if not chosen:
        raise UsageError("--models is empty. 'ultimate-embedder models list' shows the names.")
    if mode == "single" and len(chosen) > 1:
        raise UsageError(f"--mode single takes one model, and --models names {len(chosen)}. Drop --mode.")
    return chosen


def _backend(word: str | None, precision: str) -> Backend:
    backend: Backend = one_of(word or ("onnx" if precision == "int8" else "torch"), BACKENDS, "--backend")
    if precision == "int8" and backend != "onnx":
        raise UsageError(f"--precision int8 needs --backend onnx, not {backend}.")
    if precision == "fp16" and backend != "torch":
        raise UsageError(f"--backend {backend} computes in fp32, or with --precision int8. Drop --precision fp16.")
    return backend


def parse_model_choice(word: str) -> ModelChoice:
    """Read `KEY_OR_PATH` or `KEY_OR_PATH=WEIGHT`."""
    name, equals, weight = word.rpartition("=")
    if not equals or Path(word).is_dir():  # a folder may have an equals sign in its name
        return ModelChoice(word)
    if not name:
        raise UsageError(f"--models {word}: there is no name before the weight.")
    try:
        value = float(weight)
    except ValueError:
        raise UsageError(f"--models {word}: {weight!r} is not a number. Write KEY=0.7, for example.") from None
    if not 0 < value < float("inf"):
        raise UsageError(f"--models {word}: a weight must be a positive number.")
    return ModelChoice(name, value)


def _exports(value: str | Iterable[str]) -> tuple[ExportKind, ...]:
    if value == "none":
        return ()
    kinds = some_words(value, "--export")
    return tuple(dict.fromkeys(one_of(kind, EXPORT_KINDS, "--export") for kind in kinds))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value
