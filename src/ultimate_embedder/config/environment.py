"""Environment variables that replace options, including those of existing notebooks."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ultimate_embedder.config.parse import parse_flag, split_words

DEVICES_VARIABLE = "ULTIMATE_EMBEDDER_DEVICES"  # for notebooks, which have no command line


def devices_from_environment() -> str | None:
    """The devices to use if `--devices` is not given."""
    return os.environ.get(DEVICES_VARIABLE) or None


CHECK_LOCKS_VARIABLE = "ULTIMATE_EMBEDDER_CHECK_LOCKS"


@dataclass(frozen=True)
class OldEnvironment:
    """The values of the `EMBEDDER_*` variables."""

    force_cpu: bool
    refresh_cache: bool
    sequential: bool
    sequential_devices: tuple[str, ...]
    sequential_data_parallel: bool | None
    exclusive: bool


def old_environment() -> OldEnvironment:
    """Read the variables."""
    data_parallel = os.environ.get("EMBEDDER_SEQUENTIAL_DATA_PARALLEL")
    return OldEnvironment(
        force_cpu=parse_flag(os.environ.get("EMBEDDER_FORCE_CPU")),
        refresh_cache=parse_flag(os.environ.get("EMBEDDER_REFRESH_CACHE")),
        sequential=parse_flag(os.environ.get("EMBEDDER_SEQUENTIAL_ENSEMBLE")),
        sequential_devices=tuple(split_words(os.environ.get("EMBEDDER_SEQUENTIAL_DEVICES", ""))),
        sequential_data_parallel=parse_flag(data_parallel) if data_parallel else None,
        exclusive=parse_flag(os.environ.get("EMBEDDER_EXCLUSIVE_ENSEMBLE")),
    )


def must_check_locks() -> bool:
    """Whether to check the order of locks, for tests and for debugging deadlocks."""
    return parse_flag(os.environ.get(CHECK_LOCKS_VARIABLE))
