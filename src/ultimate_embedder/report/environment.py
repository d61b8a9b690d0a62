"""The versions and the machine that a summary names."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from ultimate_embedder._version import __version__

LIBRARIES = (
    "torch",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "huggingface-hub",
    "numpy",
    "pyarrow",
    "qdrant-edge-py",
    "qdrant-client",
)


def find_versions() -> dict[str, str]:
    """Of this program, of Python, and of the libraries that matter."""
    found = {"ultimate-embedder": __version__, "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            found[library] = "not installed"
    return found


def describe_machine() -> dict[str, Any]:
    """System, processor and memory."""
    import psutil

    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


@functools.cache
def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        return platform.processor()
    return platform.processor()
