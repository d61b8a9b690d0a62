"""Environment variables that replace options, including those of existing notebooks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ultimate_embedder.config.hub import MOUNTS_VARIABLE, cache_folder
from ultimate_embedder.config.parse import parse_flag, split_words
from ultimate_embedder.errors import UsageError

DEVICES_VARIABLE = "ULTIMATE_EMBEDDER_DEVICES"  # for notebooks, which have no command line


def devices_from_environment() -> str | None:
    """The devices to use if `--devices` is not given."""
    return os.environ.get(DEVICES_VARIABLE) or None


QDRANT_URL_VARIABLE = "QDRANT_URL"
QDRANT_API_KEY_VARIABLE = "QDRANT_API_KEY"


def qdrant_url_from_environment() -> str | None:
    """The address of Qdrant if `--url` is not given."""
    return os.environ.get(QDRANT_URL_VARIABLE) or None


def qdrant_api_key_from_environment(variable: str | None) -> str | None:
    """The API key of Qdrant: in the variable that `--api-key-env` names, else in `QDRANT_API_KEY`, if that is set."""
    key = os.environ.get(variable or QDRANT_API_KEY_VARIABLE) or None
    if variable and not key:
        raise UsageError(f"--api-key-env {variable}: that variable is not set.")
    return key


SERVE_TOKEN_VARIABLE = "ULTIMATE_EMBEDDER_TOKEN"  # a list of processes shows the command line to everybody


def serve_token_from_environment() -> str | None:
    """The token of `serve` if `--token` is not given."""
    return os.environ.get(SERVE_TOKEN_VARIABLE) or None


HISTORY_VARIABLE = "ULTIMATE_EMBEDDER_HISTORY"
HISTORY_NAME = "history.json"
OFF_WORDS = ("", "0", "off", "no", "none", "false")


def history_path() -> Path | None:
    """Where it is noted how fast runs were; None if that is switched off."""
    given = os.environ.get(HISTORY_VARIABLE)
    if given is None:
        return cache_folder() / HISTORY_NAME
    return None if given.strip().lower() in OFF_WORDS else Path(given).expanduser()


COMPILE_VARIABLE = "ULTIMATE_EMBEDDER_COMPILE"


def may_compile() -> bool:
    """Whether kernels for this processor may be compiled and used."""
    return os.environ.get(COMPILE_VARIABLE, "on").strip().lower() not in OFF_WORDS


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


REPORTED_VARIABLES = (
    *(DEVICES_VARIABLE, MOUNTS_VARIABLE, HISTORY_VARIABLE, COMPILE_VARIABLE, CHECK_LOCKS_VARIABLE),
    *("HF_HUB_CACHE", "HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_HUB_DOWNLOAD_TIMEOUT", "XDG_CACHE_HOME"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"),
    *("PYTHONUTF8", "PYTHONIOENCODING", "LC_ALL", "LANG"),
    *("KAGGLE_KERNEL_RUN_TYPE", "COLAB_RELEASE_TAG", "JPY_PARENT_PID"),
)
"""Settings that change what a run does, and hold no secrets."""
SECRET_VARIABLES = ("HF_TOKEN", QDRANT_API_KEY_VARIABLE, SERVE_TOKEN_VARIABLE)


def known_environment(more: Iterable[str] = ()) -> dict[str, str]:
    """The settings that are worth a line in a bug report, and `more`; of secrets only that they are set."""
    given = {name: os.environ[name] for name in (*REPORTED_VARIABLES, *more) if name in os.environ}
    return given | {name: "(set)" for name in SECRET_VARIABLES if os.environ.get(name)}


TELEMETRY_EXPORTERS = ("otlp", "console", "none")
TELEMETRY_PROTOCOL = "http/protobuf"


@dataclass(frozen=True)
class TelemetryExporters:
    """What `OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER` choose; the library itself reads the other variables."""

    traces: str
    metrics: str


def telemetry_exporters() -> TelemetryExporters:
    """The exporters of `--otel`; raises `UsageError` for one that this program does not have."""
    return TelemetryExporters(_telemetry_exporter("TRACES"), _telemetry_exporter("METRICS"))


def _telemetry_exporter(signal: str) -> str:
    variable = f"OTEL_{signal}_EXPORTER"
    word = os.environ.get(variable, "").strip().lower() or TELEMETRY_EXPORTERS[0]
    if word not in TELEMETRY_EXPORTERS:
        raise UsageError(f"--otel: {variable}={word} is none of {', '.join(TELEMETRY_EXPORTERS)}.")
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(name, "").strip()
        if word == TELEMETRY_EXPORTERS[0] and protocol not in ("", TELEMETRY_PROTOCOL):
            raise UsageError(
                f"--otel sends OTLP over HTTP, and {name} is {protocol}. Set it to {TELEMETRY_PROTOCOL}, and "
                "OTEL_EXPORTER_OTLP_ENDPOINT to the HTTP port of the collector (4318 by default)."
            )
    return word


def telemetry_parent() -> dict[str, str]:
    """The span that started this process, as `TRACEPARENT` and `TRACESTATE` tell it."""
    found = {name: os.environ.get(name.upper(), "") for name in ("traceparent", "tracestate")}
    return {name: value for name, value in found.items() if value}
