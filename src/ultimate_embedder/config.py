"""The options of a run: validated once, here, and never changed afterwards. Only this file reads the environment."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ultimate_embedder.errors import UsageError
from ultimate_embedder.lock import LOCK_NAME
from ultimate_embedder.retry import RetryPolicy
from ultimate_embedder.stop import parse_deadline

Mode = Literal["auto", "single", "simultaneous", "sequential", "exclusive"]
Precision = Literal["auto", "fp32", "fp16"]
ExportKind = Literal["npy", "parquet", "jsonl", "qdrant"]

MODES: tuple[Mode, ...] = get_args(Mode)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
EXPORT_KINDS: tuple[ExportKind, ...] = get_args(ExportKind)
DEFAULT_MODEL = "all-minilm-l6-v2"
DEVICES_VARIABLE = "ULTIMATE_EMBEDDER_DEVICES"  # for notebooks, where nobody types --devices
GPU0_CEILING_BYTES = 12 * 10**9
SAFETY_MARGIN = 0.08
KAGGLE_CACHE = Path("/root/.cache/huggingface/hub")
KAGGLE_MOUNTS = Path("/kaggle/input")
MOUNTS_VARIABLE = "ULTIMATE_EMBEDDER_MODEL_MOUNTS"
SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


@dataclass(frozen=True)
class ModelChoice:
    """A model the user asked for, by registry key or folder, and its weight in an ensemble."""

    name: str
    weight: float = 1.0


@dataclass(frozen=True)
class HubAccess:
    """How models are found and fetched: which caches, and whether the network may be used."""

    cache_dir: Path | None = None
    offline: bool = False
    refresh: bool = False
    trusted: tuple[str, ...] = ()
    retry: RetryPolicy = field(default_factory=lambda: retry_policy())

    @property
    def download_folder(self) -> Path:
        """The cache that downloads go to."""
        return self.caches[0]

    @property
    def caches(self) -> tuple[Path, ...]:
        """Where cached models are looked for: where we are told, else in the default place and Kaggle's."""
        if self.cache_dir is not None:
            return (self.cache_dir,)
        if given := os.environ.get("HF_HUB_CACHE"):
            return (Path(given).expanduser(),)
        if home := os.environ.get("HF_HOME"):
            return (Path(home).expanduser() / "hub",)
        default = _cache_home() / "huggingface" / "hub"
        return tuple(dict.fromkeys([default, *(place for place in (KAGGLE_CACHE,) if place.exists())]))

    @property
    def mounts(self) -> tuple[Path, ...]:
        """Where read-only copies of models may be."""
        given = os.environ.get(MOUNTS_VARIABLE)
        places = [Path(place) for place in given.split(os.pathsep)] if given else [KAGGLE_MOUNTS]
        return tuple(place for place in places if place.exists())

    @property
    def endpoint(self) -> str:
        """The hub."""
        return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def retry_policy() -> RetryPolicy:
    """How downloads and uploads are retried; two variables shorten the waits."""
    return RetryPolicy(
        first_wait_s=_seconds("ULTIMATE_EMBEDDER_RETRY_FIRST_WAIT_S", RetryPolicy.first_wait_s),
        total_s=_seconds("ULTIMATE_EMBEDDER_RETRY_TOTAL_S", RetryPolicy.total_s),
    )


def hub_access(
    *,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    refresh: bool = False,
    trusted: str | Iterable[str] = (),
) -> HubAccess:
    """Options and environment together: `HF_HUB_OFFLINE` means `--offline`."""
    forbidden = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    if offline and refresh:
        raise UsageError("--offline and --refresh-cache contradict each other. Drop one.")
    return HubAccess(
        cache_dir=Path(cache_dir).expanduser() if cache_dir is not None else None,
        offline=offline or (forbidden and not refresh),
        refresh=refresh,
        trusted=tuple(_words(trusted)),
    )


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run does."""

    chunks: Path
    output: Path
    collections: tuple[str, ...] = ()
    models: tuple[ModelChoice, ...] = (ModelChoice(DEFAULT_MODEL),)
    mode: Mode = "auto"
    devices: str = "auto"
    max_tokens: int | None = None
    dim: int | None = None
    precision: Precision = "auto"
    gpu0_ceiling_bytes: int = GPU0_CEILING_BYTES
    safety_margin: float = SAFETY_MARGIN
    gradient_checkpointing: bool = False
    allow_missing_companions: bool = False
    hub: HubAccess = field(default_factory=HubAccess)
    exports: tuple[ExportKind, ...] = EXPORT_KINDS
    summary: Path | None = None
    dry_run: bool = False
    deadline_s: float | None = None
    fresh: bool = False
    resume_from: Path | None = None

    @property
    def summary_path(self) -> Path:
        """Where the summary goes: the path that was asked for, else into the output folder."""
        return self.summary or self.output / "summary.json"

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
    devices: str | None = None,
    max_tokens: int | None = None,
    dim: int | None = None,
    precision: str = "auto",
    gpu0_ceiling: str | int = GPU0_CEILING_BYTES,
    safety_margin: str | float = SAFETY_MARGIN,
    gradient_checkpointing: bool = False,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    refresh_cache: bool = False,
    trust_remote_code: str | Iterable[str] = (),
    allow_missing_companions: bool = False,
    exports: str | Iterable[str] = EXPORT_KINDS,
    summary: str | Path | None = None,
    dry_run: bool = False,
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
    if output.is_dir() and not (output / LOCK_NAME).exists() and any(output.glob("*_chunks.json")):
        raise UsageError(f"--output {output} holds chunk files. Give a folder of its own, so that none is overwritten.")
    if summary is not None and Path(summary).is_dir():
        raise UsageError(f"--summary {summary} is a folder. Give the name of a file.")
    if fresh and resume_from is not None:
        raise UsageError("--fresh and --resume-from contradict each other. Drop one.")
    chosen = tuple(parse_model_choice(word) for word in _words(models))
    if not chosen:
        raise UsageError("--models is empty. 'ultimate-embedder models list' shows the names.")
    return RunConfig(
        chunks=chunks,
        output=output,
        collections=_some(collections, "--collections") if collections is not None else (),
        models=chosen,
        mode=one_of(mode, MODES, "--mode"),
        devices=devices or os.environ.get(DEVICES_VARIABLE) or "auto",
        max_tokens=_at_least(max_tokens, 8, "--max-tokens"),
        dim=_at_least(dim, 1, "--dim"),
        precision=one_of(precision, PRECISIONS, "--precision"),
        gpu0_ceiling_bytes=parse_size(str(gpu0_ceiling), "--gpu0-ceiling"),
        safety_margin=_share(safety_margin, "--safety-margin"),
        gradient_checkpointing=gradient_checkpointing,
        allow_missing_companions=allow_missing_companions,
        hub=hub_access(cache_dir=cache_dir, offline=offline, refresh=refresh_cache, trusted=trust_remote_code),
        exports=_exports(exports),
        summary=Path(summary) if summary is not None else None,
        dry_run=dry_run,
        deadline_s=parse_deadline(deadline) if deadline is not None else None,
        fresh=fresh,
        resume_from=_existing_folder(resume_from, "--resume-from"),
    )


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


def suggest(word: str, valid: Iterable[str]) -> str:
    """Say what `word` may have meant: ' Did you mean X?' or nothing."""
    close = difflib.get_close_matches(word.lower(), list(valid), n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""


def one_of(word: str, valid: tuple[Any, ...], option: str) -> Any:
    """Check that `word` is one of `valid`."""
    if word in valid:
        return word
    raise UsageError(f"{option} {word}: not one of {', '.join(valid)}.{suggest(word, valid)}")


def cache_folder() -> Path:
    """Where what is costly to make and easy to make again is kept."""
    return _cache_home() / "ultimate-embedder"


def parse_size(word: str, option: str) -> int:
    """Read a number of bytes: `15GiB`, `12GB`, `512MiB`, or just a number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", word.strip().lower())
    if match is None or match[2] not in SIZES:
        raise UsageError(f"{option}: {word!r} is not a size. Write 15GiB, 12GB or 512MiB, for example.")
    return int(float(match[1]) * SIZES[match[2]])


def _some(value: str | Iterable[str], option: str) -> tuple[str, ...]:
    words = tuple(_words(value))
    if isinstance(value, str) and not words:
        raise UsageError(f"{option} is empty. Give at least one name, or drop the option.")
    return words


def _exports(value: str | Iterable[str]) -> tuple[ExportKind, ...]:
    if value == "none":
        return ()
    kinds = _some(value, "--export")
    return tuple(dict.fromkeys(one_of(kind, EXPORT_KINDS, "--export") for kind in kinds))


def _seconds(variable: str, default: float) -> float:
    given = os.environ.get(variable)
    try:
        return float(given) if given else default
    except ValueError:
        raise UsageError(f"{variable}={given}: not a number of seconds.") from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def _words(value: str | Iterable[str]) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else list(value)
    return [part.strip() for part in parts if part.strip()]


def _existing_folder(path: str | Path | None, option: str) -> Path | None:
    if path is not None and not Path(path).is_dir():
        raise UsageError(f"{option} {path} is not a folder. Give the --output of an earlier run.")
    return Path(path) if path is not None else None


def _share(value: str | float, option: str) -> float:
    word = str(value).strip()
    try:
        share = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"{option}: {word!r} is not a share. Write 8%, for example.") from None
    if not 0 <= share < 1:
        raise UsageError(f"{option} {word}: must be at least 0 and less than 100 %.")
    return share


def _at_least(value: int | None, least: int, option: str) -> int | None:
    if value is not None and value < least:
        raise UsageError(f"{option} {value}: must be at least {least}.")
    return value
