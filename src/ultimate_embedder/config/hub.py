"""Where models are looked for, and whether they may be downloaded."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ultimate_embedder.config.parse import parse_flag, split_words
from ultimate_embedder.errors import UsageError
from ultimate_embedder.retry import RetryPolicy

KAGGLE_CACHE = Path("/root/.cache/huggingface/hub")
KAGGLE_MOUNTS = Path("/kaggle/input")
MOUNTS_VARIABLE = "ULTIMATE_EMBEDDER_MODEL_MOUNTS"


@dataclass(frozen=True)
class HubAccess:
    """Where models are looked for, and whether they may be downloaded."""

    cache_dir: Path | None = None
    offline: bool = False
    refresh: bool = False
    trusted: tuple[str, ...] = ()
    retry: RetryPolicy = field(default_factory=lambda: retry_policy())

    @property
    def download_folder(self) -> Path:
        """The cache that models are downloaded to."""
        return self.caches[0]

    @property
    def caches(self) -> tuple[Path, ...]:
        """The cache folders to search: the configured one, else the default one and Kaggle's."""
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
        """Folders that may contain read-only copies of models."""
        given = os.environ.get(MOUNTS_VARIABLE)
        places = [Path(place) for place in given.split(os.pathsep)] if given else [KAGGLE_MOUNTS]
        return tuple(place for place in places if place.exists())

    @property
    def endpoint(self) -> str:
        """URL of the hub."""
        return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def retry_policy() -> RetryPolicy:
    """The retry policy of downloads and uploads; two environment variables change the waits."""
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
    """Combine options and environment: `HF_HUB_OFFLINE` means `--offline`."""
    forbidden = parse_flag(os.environ.get("HF_HUB_OFFLINE"))
    if offline and refresh:
        raise UsageError("--offline and --refresh-cache contradict each other. Drop one.")
    return HubAccess(
        cache_dir=Path(cache_dir).expanduser() if cache_dir is not None else None,
        offline=offline or (forbidden and not refresh),
        refresh=refresh,
        trusted=tuple(split_words(trusted)),
    )


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def cache_folder() -> Path:
    """Cache folder of this program, for exported models and compiled code."""
    return _cache_home() / "ultimate-embedder"


def _seconds(variable: str, default: float) -> float:
    given = os.environ.get(variable)
    try:
        return float(given) if given else default
    except ValueError:
        raise UsageError(f"{variable}={given}: not a number of seconds.") from None
