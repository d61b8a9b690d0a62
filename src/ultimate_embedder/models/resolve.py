"""Find a model's files: in a folder, a Python package or the Hugging Face cache, else download them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import DownloadError, MissingModelError, ModelError, UnknownModelError
from ultimate_embedder.events import Emit, Event
from ultimate_embedder.files import size_bytes
from ultimate_embedder.models.download import download
from ultimate_embedder.models.hub_cache import Snapshot, find_mounted, find_snapshot
from ultimate_embedder.models.paths import existing_folder
from ultimate_embedder.models.registry import find_spec, how_to_install, name_to_pull, unknown_model
from ultimate_embedder.models.trust import is_trusted, require_trust
from ultimate_embedder.models.verify import files_digest, verify_snapshot
from ultimate_embedder.types import ModelKind, ModelSource, ModelSpec, ResolvedModel

WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
HUB_ID = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}")  # no hub has longer names


def _ignore(event: Event) -> None:
    """Discard an event."""


def resolve_model(
    name: str,
    access: HubAccess | None = None,
    emit: Emit = _ignore,
    kind: ModelKind = "embedder",
    *,
    to_load: bool = True,
) -> ResolvedModel:
    """Find the files of a model by registry key, hub id or path. No request is made for a model on this machine.

    Raises for a model that would run code or has pickles and is not trusted; with `to_load=False` only for one that the
    registry knows as such.
    """
    access = access or HubAccess(offline=True)
    spec = spec_of(name)
    if spec is None:
        return _from_folder(name, access if to_load else None)
    if spec.dim and kind == "reranker":
        raise ModelError(
            f"{spec.key} is an embedding model, not a reranker. Choose a reranker from 'ultimate-embedder models list'."
        )
    if kind != "reranker" and spec.kind != kind and find_spec(name) is not None:
        raise UnknownModelError(f"{spec.key} {_wrong_kind(spec, kind)}")
    _require_trust(spec, access)
    return _resolve_spec(spec, access, emit, to_load=to_load)


def _wrong_kind(spec: ModelSpec, wanted: ModelKind) -> str:
    listed = "from 'ultimate-embedder models list'"
    if spec.kind == "sparse":
        return f"is a sparse encoder. Write --sparse splade={spec.key}, and choose a dense model for --models {listed}."
    what = "a sparse encoder" if wanted == "sparse" else "an embedding model"
    is_a = "a reranker" if spec.kind == "reranker" else "a model with dense vectors"
    return f"is {is_a}, not {what}. Choose another {listed}."


def spec_of(name: str) -> ModelSpec | None:
    """The spec of a registry key or hub id; None if the name must be a folder."""
    spec = find_spec(name)
    is_path = name.startswith(("./", "../", "~")) or existing_folder(name) is not None
    return _unregistered(name) if spec is None and not is_path and HUB_ID.fullmatch(name) else spec


def model_name(name: str) -> str:
    """The name of a model in passes and exports, from a registry key, hub id or folder."""
    spec = spec_of(name)
    if spec is not None:
        return spec.key
    folder = existing_folder(name)
    return (folder.resolve() if folder else Path(name)).name


def cached_snapshot(spec: ModelSpec, access: HubAccess) -> Snapshot | None:
    """The model in the caches and mounts of this machine, complete or not."""
    return find_snapshot(spec.hub_id, spec.revision, access.caches) or find_mounted(spec.hub_id, access.mounts)


def pull_model(name: str, access: HubAccess, emit: Emit) -> ResolvedModel:
    """Download a model into the cache, unless it is there and complete."""
    spec = find_spec(name)
    if spec is None and HUB_ID.fullmatch(name):
        spec = _unregistered(name)
    if spec is None:
        raise unknown_model(name)
    _require_trust(spec, access)
    cached = cached_snapshot(spec, access)
    if cached is not None and not access.offline and not access.refresh and any(verify_snapshot(cached)):
        fetched = download(spec, access, emit)
        require_trust(spec, fetched.path, access.trusted)
        return _resolved(spec, fetched.path, "download", fetched.commit, retries=fetched.retries, note="repaired")
    return _resolve_spec(spec, access, emit)


@dataclass(frozen=True)
class ModelLocation:
    """Where a model is on this machine, and its size."""

    label: str
    size_bytes: int


def locate_model(spec: ModelSpec, access: HubAccess) -> ModelLocation:
    """Find out where a known model is, without reading its weights."""
    if spec.package and (folder := package_folder(spec.package)):
        return ModelLocation("package", size_bytes(folder))
    cached = cached_snapshot(spec, access)
    if cached is None:
        return ModelLocation("no", 0)
    label = "incomplete" if cached.problems else f"cached {cached.commit[:12]}".strip()
    return ModelLocation(label, size_bytes(cached.path))


def _unregistered(hub_id: str) -> ModelSpec:
    return ModelSpec(key=hub_id.split("/")[1].lower(), hub_id=hub_id, dim=0, max_tokens=0)


def package_folder(package: str) -> Path | None:
    """The folder with the files of a model in an installed Python package."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "model"


def _resolve_spec(spec: ModelSpec, access: HubAccess, emit: Emit, *, to_load: bool = True) -> ResolvedModel:
    if spec.package and not access.refresh and (packaged := _from_package(spec, spec.package)):
        return packaged
    cached = cached_snapshot(spec, access)
    if access.refresh and not access.offline:
        return _refreshed(spec, cached, access, emit)
    if cached is not None and not cached.problems:
        if to_load:
            require_trust(spec, cached.path, access.trusted)
        return _resolved(spec, cached.path, "cache", cached.commit)
    if access.offline:
        why = _why_missing(spec, cached, access)
        raise MissingModelError(name_to_pull(spec), why, install=how_to_install(spec))
    fetched = download(spec, access, emit)
    require_trust(spec, fetched.path, access.trusted)
    return _resolved(spec, fetched.path, "download", fetched.commit, retries=fetched.retries)


def _refreshed(spec: ModelSpec, cached: Snapshot | None, access: HubAccess, emit: Emit) -> ResolvedModel:
    try:
        fetched = download(spec, access, emit)
    except DownloadError as error:
        if cached is None or cached.problems:
            raise
        # it is not missing: a run without it, where that is allowed, would be of other models than necessary
        raise ModelError(
            f"{spec.key} cannot be refreshed: {error.problem.rstrip('.')}. It is in {cached.path}: to use it as it "
            "is, drop --refresh-cache."
        ) from error
    require_trust(spec, fetched.path, access.trusted)
    before = cached.commit if cached else None
    if before is None:
        note = f"downloaded at commit {fetched.commit}"
    elif before == fetched.commit:
        note = f"commit unchanged: {before}"
    else:
        note = f"commit changed from {before} to {fetched.commit}"
    return _resolved(spec, fetched.path, "refresh", fetched.commit, retries=fetched.retries, note=note)


def _resolved(
    spec: ModelSpec, path: Path, source: ModelSource, revision: str, *, retries: int = 0, note: str = ""
) -> ResolvedModel:
    digest = files_digest(path)
    return ResolvedModel(
        name=spec.key,
        spec=spec,
        path=path,
        source=source,
        revision=revision or digest[:12],
        digest=digest,
        size_bytes=size_bytes(path),
        retries=retries,
        note=note,
    )


def _require_trust(spec: ModelSpec, access: HubAccess) -> None:
    if spec.remote_code and not is_trusted(spec, None, access.trusted):
        raise ModelError(
            f"{spec.key} runs code from its own repository. If you have read it and trust it, allow it with "
            f"--trust-remote-code {spec.key}; else choose another: 'ultimate-embedder models list' marks them."
        )


def _why_missing(spec: ModelSpec, cached: Snapshot | None, access: HubAccess) -> str:
    if cached is not None:
        return f"is incomplete in {cached.path}: {'; '.join(cached.problems)}"
    return f"is not on this machine. Looked in: {'; '.join(_looked_in(spec, access))}"


def _looked_in(spec: ModelSpec, access: HubAccess) -> Iterator[str]:
    if spec.package:
        yield f"the Python package {spec.package}"
    yield from (f"the Hugging Face cache {cache}" for cache in access.caches)
    yield from (f"the mounts below {mount}" for mount in access.mounts)


def _from_folder(name: str, access: HubAccess | None) -> ResolvedModel:
    folder = existing_folder(name)
    if folder is None:
        raise unknown_model(name)
    if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
        raise UnknownModelError(
            f"{folder} is not a model: it has neither modules.json nor config.json. Give the folder that holds them, "
            "or a name from 'ultimate-embedder models list'."
        )
    if access is not None:  # before all its files are read: the name may be of a summary from elsewhere
        require_trust(None, folder, access.trusted)
    _require_weights(folder)
    digest = files_digest(folder)
    name = folder.resolve().name
    return ResolvedModel(name, None, folder, "folder", digest[:12], digest, size_bytes(folder))


def _from_package(spec: ModelSpec, package: str) -> ResolvedModel | None:
    folder = package_folder(package)
    if folder is None:
        return None
    _require_weights(folder)
    distribution = package.replace("_", "-")
    return _resolved(spec, folder, "package", f"{distribution}=={importlib.metadata.version(distribution)}")


def _require_weights(folder: Path) -> None:
    # is_file is False for a broken link
    if not any(path.is_file() for pattern in WEIGHT_PATTERNS for path in folder.rglob(pattern)):
        raise ModelError(
            f"{folder} has no weights ({' or '.join(WEIGHT_PATTERNS)}). "
            "The copy or download is incomplete: copy or download it again."
        )
