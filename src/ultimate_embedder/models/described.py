"""Find what describes a model, config and tokenizer, for a plan: no weights are needed, and none are downloaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import DownloadError, MissingModelError, ModelError
from ultimate_embedder.events import Emit
from ultimate_embedder.files import file_sha256
from ultimate_embedder.models.download import Downloaded, download, is_weights
from ultimate_embedder.models.hub_cache import HubFile, Snapshot, read_file_list
from ultimate_embedder.models.known_configs import KNOWN_CONFIGS, STAND_IN, KnownConfig, write_stand_in
from ultimate_embedder.models.registry import name_to_pull
from ultimate_embedder.models.resolve import cached_snapshot, model_name, resolve_model, spec_of
from ultimate_embedder.models.trust import require_trust
from ultimate_embedder.models.verify import ModelFile, digest_of
from ultimate_embedder.types import ModelSource, ModelSpec, ResolvedModel

Place = Literal["here", "hub", "missing"]


@dataclass(frozen=True)
class DescribedModel:
    """A model whose weights may be elsewhere. Its digest is empty where that of the whole model is not known."""

    model: ResolvedModel
    weights: Place
    """On this machine, on the hub and not fetched, or neither here nor to be fetched."""
    weights_bytes: int
    """Size of their files; 0 if it is not known."""
    download_bytes: int = 0
    """What a run would download."""
    stand_in: bool = False
    """Whether only the registry describes it: sizes are known, tokens are estimated."""
    note: str = ""

    @property
    def name(self) -> str:
        """The model."""
        return self.model.name


def describe_model(name: str, access: HubAccess, emit: Emit, scratch: Path) -> DescribedModel:
    """Find the files that describe a model: on this machine, else from the hub, else what the registry knows of it.

    Raises `MissingModelError` or `DownloadError` if nothing does. Stand-ins for files are written below `scratch`.
    """
    here = dataclasses.replace(access, offline=True, refresh=False)
    try:
        found = resolve_model(name, here)
    except MissingModelError as missing:
        spec = spec_of(name)
        if spec is None:
            raise
        return _describe_elsewhere(spec, access, emit, scratch, missing)
    except ModelError as error:
        folder = _without_weights(name, error)
        return DescribedModel(folder, "missing", 0, note=str(error))
    return DescribedModel(found, "here", _weights_bytes(found.path))


def _describe_elsewhere(
    spec: ModelSpec, access: HubAccess, emit: Emit, scratch: Path, missing: MissingModelError
) -> DescribedModel:
    problem: MissingModelError | DownloadError = missing
    if not access.offline:
        try:
            return _from_hub(spec, download(spec, access, emit, weights=False), access)
        except DownloadError as error:
            problem = error
    cached = cached_snapshot(spec, access)
    if cached is not None and _describes(cached.path):
        return _from_incomplete(spec, cached, access, problem.why)
    known = KNOWN_CONFIGS.get(spec.key)
    if known is None:
        raise problem
    return _from_registry(spec, known, scratch, problem.why)


def _from_hub(spec: ModelSpec, fetched: Downloaded, access: HubAccess) -> DescribedModel:
    require_trust(spec, fetched.path, access.trusted)
    missing = [file for file in fetched.files if not (fetched.path / file.name).is_file()]
    model = _resolved(spec, fetched.path, "download", fetched.commit, fetched.files)
    size = sum(file.size_bytes for file in missing)
    return DescribedModel(model, "hub" if missing else "here", _sum_weights(fetched.files), size)


def _from_incomplete(spec: ModelSpec, cached: Snapshot, access: HubAccess, why: str) -> DescribedModel:
    require_trust(spec, cached.path, access.trusted)
    files = read_file_list(cached.path.parents[1], cached.commit)
    model = _resolved(spec, cached.path, "cache", cached.commit, files)
    return DescribedModel(model, "missing", _sum_weights(files), note=f"{name_to_pull(spec)} {why}")


def _from_registry(spec: ModelSpec, known: KnownConfig, scratch: Path, why: str) -> DescribedModel:
    from ultimate_embedder.models.without_weights import load_without_weights

    path = write_stand_in(spec, known, scratch)
    model = ResolvedModel(spec.key, spec, path, "folder", "", "", 0, note=STAND_IN)
    size = load_without_weights(model, known.stored_in, stand_in=True).weight_bytes
    return DescribedModel(model, "missing", size, stand_in=True, note=f"{name_to_pull(spec)} {why}")


def _without_weights(name: str, error: ModelError) -> ResolvedModel:
    """The model in a folder that has everything but weights; raises `error` for anything else."""
    folder = Path(name).expanduser()
    if spec_of(name) is not None or not _describes(folder) or _weights_bytes(folder):
        raise error
    return ResolvedModel(model_name(name), None, folder, "folder", "", "", 0)


def _describes(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "tokenizer_config.json").is_file()


def _resolved(spec: ModelSpec, path: Path, source: ModelSource, commit: str, files: Sequence[HubFile]) -> ResolvedModel:
    size = sum(file.size_bytes for file in files)
    return ResolvedModel(spec.key, spec, path, source, commit, _digest(path, files), size)


def _digest(path: Path, files: Sequence[HubFile]) -> str:
    """The digest that the whole model will have; empty if the checksum of a file that is missing is not known."""
    listed = []
    for file in sorted(files, key=lambda each: path / each.name):  # in the order of a walk
        here = path / file.name
        sha256 = file_sha256(here) if here.is_file() else file.sha256
        if sha256 is None:
            return ""
        listed.append(ModelFile(file.name, file.size_bytes, sha256))
    return digest_of(listed) if listed else ""


def _sum_weights(files: Sequence[HubFile]) -> int:
    return sum(file.size_bytes for file in files if is_weights(file.name))


def _weights_bytes(folder: Path) -> int:
    """Bytes of the weights in a folder; those of one format, where it has several."""
    names = [path for path in folder.rglob("*") if path.is_file() and is_weights(path.name)]
    safe = [path for path in names if path.suffix == ".safetensors"]
    return sum(path.stat().st_size for path in safe or names)
