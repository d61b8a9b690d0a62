"""The models, commits and files that are needed to resume or query an output on another machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import UsageError
from ultimate_embedder.models.hub_cache import read_file_list, repo_folder
from ultimate_embedder.output import open_output

KEPT = ("model", "hub_id", "revision", "digest", "size_bytes", "dim")


def output_manifest(output: Path, access: HubAccess) -> list[dict[str, Any]]:
    """The models of an output, from its summary; files and checksums if they were downloaded by this program."""
    summary = open_output(output).read_summary()
    if summary is None:
        raise UsageError(
            f"{output} has no summary: its last run was killed. Run the same embed command again to write one."
        )
    entries: dict[str, dict[str, Any]] = {}
    for collection in summary.collections:
        for model in collection.models:
            entry: dict[str, Any] = {name: getattr(model, name) for name in KEPT}
            entry["files"] = _files(model.hub_id, model.revision, access)
            entries[f"{model.model} {model.digest}"] = entry
    return list(entries.values())


def _files(hub_id: str | None, revision: str, access: HubAccess) -> list[dict[str, Any]]:
    if not hub_id:
        return []
    lists = [read_file_list(repo_folder(cache, hub_id), revision) for cache in access.caches]
    return [dataclasses.asdict(file) for file in next((found for found in lists if found), [])]
