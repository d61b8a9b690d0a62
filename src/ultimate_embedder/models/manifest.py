"""What an output needs to be continued or queried elsewhere: the exact models, commits and files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import UsageError
from ultimate_embedder.models.hub_cache import read_file_list, repo_folder


def output_manifest(output: Path, access: HubAccess) -> list[dict[str, Any]]:
    """The models of an output, from its summary; files and hashes where a download of ours has left them."""
    path = output / "summary.json"
    try:
        summary = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error}). Give the --output of an earlier embed.") from error
    entries: dict[str, dict[str, Any]] = {}
    for collection in summary.get("collections", []):
        for model in collection["models"]:
            keep = ("model", "hub_id", "revision", "digest", "size_bytes", "dim")
            entry = {name: model[name] for name in keep}
            entry["files"] = _files(entry["hub_id"], entry["revision"], access)
            entries[f"{entry['model']} {entry['digest']}"] = entry
    return list(entries.values())


def _files(hub_id: str | None, revision: str, access: HubAccess) -> list[dict[str, Any]]:
    if not hub_id:
        return []
    lists = [read_file_list(repo_folder(cache, hub_id), revision) for cache in access.caches]
    return [dataclasses.asdict(file) for file in next((found for found in lists if found), [])]
