"""The models, commits and files that are needed to resume or query an output on another machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ultimate_embedder.config import HubAccess
from ultimate_embedder.description import PassDescription, read_description
from ultimate_embedder.errors import UsageError
from ultimate_embedder.models.hub_cache import find_mounted, find_snapshot
from ultimate_embedder.models.paths import existing_folder
from ultimate_embedder.models.registry import find_spec
from ultimate_embedder.models.resolve import HUB_ID, model_name, package_folder, spec_of
from ultimate_embedder.models.verify import ModelFile, digest_of, list_files
from ultimate_embedder.output import CollectionOutput, open_output

if TYPE_CHECKING:  # a fifth of the start of commands that need no summary
    from ultimate_embedder.summary import ModelSummary, RunSummary


@dataclass(frozen=True)
class _Needed:
    """A model that vectors of an output were made with; None for what is not recorded."""

    model: str
    hub_id: str | None
    revision: str
    digest: str
    size_bytes: int | None
    dim: int | None
    path: str | None


def output_manifest(output: Path, access: HubAccess) -> list[dict[str, Any]]:
    """The models of an output with names, sizes and checksums of their files, as far as these are on this machine.

    `files` is empty where they are not, or differ from those that made the vectors; then `note` says so.
    """
    opened = open_output(output)
    summary = opened.read_summary()
    if summary is None:
        raise UsageError(
            f"{output} has no summary: its last run was killed. Run the same embed command again to write one."
        )
    needed: dict[tuple[str, str], _Needed] = {}
    for collection in summary.collections:
        models = [_from_summary(model) for model in collection.models]
        for each in models or _from_store(opened.collection(collection.collection), summary):
            needed.setdefault((each.model, each.digest), each)
    return [_entry(each, access) for each in needed.values()]


def _from_summary(model: ModelSummary) -> _Needed:
    return _Needed(**{field.name: getattr(model, field.name) for field in dataclasses.fields(_Needed)})


def _from_store(collection: CollectionOutput, summary: RunSummary) -> Iterator[_Needed]:
    """The models of a collection that the last run skipped: its summary names none, but its stored passes do."""
    words = {model_name(choice.name): choice.name for choice in (summary.options.models if summary.options else ())}
    for stored in collection.passes:
        described = read_description(stored.folder)
        identity = described.identity if isinstance(described, PassDescription) else None
        if identity is None:  # damaged, or of another version: its vectors are of no use to this one
            continue
        word = words.get(identity.model, identity.model)
        spec = spec_of(word)
        yield _Needed(
            model=identity.model,
            hub_id=spec.hub_id if spec else None,
            revision=identity.revision,
            digest=identity.model_digest,
            size_bytes=None,
            dim=identity.dim or (spec.dim if spec else None) or None,
            path=None if spec else str(Path(word).expanduser().absolute()),
        )


def _entry(needed: _Needed, access: HubAccess) -> dict[str, Any]:
    files, note = _find_files(needed, access)
    entry = {field.name: getattr(needed, field.name) for field in dataclasses.fields(_Needed) if field.name != "path"}
    if needed.size_bytes is None and files:
        entry["size_bytes"] = sum(file.size_bytes for file in files)
    return {**entry, "files": [dataclasses.asdict(file) for file in files], "note": note}


def _find_files(needed: _Needed, access: HubAccess) -> tuple[list[ModelFile], str]:
    """The files of a model in the first place that has exactly these, or words about why there are none."""
    differing = []
    for folder in dict.fromkeys(_places(needed, access)):
        files = list_files(folder)
        if digest_of(files) == needed.digest:
            return files, ""
        differing.append(str(folder))
    if differing:
        return [], f"its files here are not those that made the vectors: {'; '.join(differing)}"
    fetch = f"Fetch {needed.hub_id} at {needed.revision}." if needed.hub_id else f"It was in {needed.path}."
    return [], f"not on this machine. {fetch}"


def _places(needed: _Needed, access: HubAccess) -> Iterator[Path]:
    """Folders of this machine that may hold the model."""
    found = [Path(needed.path)] if needed.path and existing_folder(needed.path) else []
    spec = find_spec(needed.hub_id or needed.model)
    if spec and spec.package and (folder := package_folder(spec.package)):
        found.append(folder)
    if needed.hub_id and HUB_ID.fullmatch(needed.hub_id):
        snapshots = [find_snapshot(needed.hub_id, revision, access.caches) for revision in (needed.revision, None)]
        found += [each.path for each in (*snapshots, find_mounted(needed.hub_id, access.mounts)) if each]
    # the path is of a summary, maybe of another machine: what is no model there is not read
    yield from (each for each in found if any((each / name).is_file() for name in ("modules.json", "config.json")))
