"""Download a model from the hub: only the files that are needed to load it."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import ModelError
from ultimate_embedder.events import Emit, ModelFetchStarted
from ultimate_embedder.files import atomic_file, write_json
from ultimate_embedder.models.hub_cache import FILE_LISTS, HubFile, problems_of, repo_folder
from ultimate_embedder.models.hub_client import HubClient, file_damage
from ultimate_embedder.types import ModelSpec

SKIPPED = (
    "onnx/*", "*.onnx", "*.onnx_data", "openvino/*", "*.ot", "*.h5", "*.msgpack", "*.gguf", "*.tflite", "*.mlmodel",
    "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.pdf", "*.md", ".gitattributes", "training_args.bin",
    "optimizer.pt", "*.parquet", "*.csv",
)  # fmt: skip
CODE = ("*.py",)
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth")


@dataclasses.dataclass(frozen=True)
class Downloaded:
    """A downloaded model: its path, its commit, and the number of retries."""

    path: Path
    commit: str
    retries: int


def download(spec: ModelSpec, access: HubAccess, emit: Emit) -> Downloaded:
    """Download missing or damaged files of a model's current (or pinned) commit."""
    client = HubClient(spec, access, emit)
    commit, everything = client.describe()
    files = select_files(everything, with_code=spec.key in access.trusted)
    repo = repo_folder(access.download_folder, spec.hub_id)
    snapshot = repo / "snapshots" / commit
    # the list of files is written first, so that an interrupted download is recognised
    write_json(repo / FILE_LISTS / f"{commit}.json", [dataclasses.asdict(file) for file in files])
    missing = [file for file in files if _is_missing(snapshot / file.name, file)]
    if missing:
        emit(ModelFetchStarted(model=spec.key, files=len(missing), size_bytes=sum(file.size or 0 for file in missing)))
    for file in missing:
        client.fetch(file, commit)
    if problems := list(problems_of(snapshot, files)):
        raise ModelError(f"{spec.key} is incomplete after its download: {'; '.join(problems)}. Run the command again.")
    if spec.revision is None:
        with atomic_file(repo / "refs" / "main") as ref:
            ref.write(commit.encode())
    return Downloaded(snapshot, commit, client.retries)


def select_files(files: Sequence[HubFile], with_code: bool = False) -> list[HubFile]:
    """The files that are needed to load a model: one format of the weights per folder, no other frameworks."""
    has_safetensors = {_folder(file) for file in files if file.name.endswith(".safetensors")}
    chosen = []
    for file in files:
        skipped = SKIPPED + (() if with_code else CODE) + (OTHER_WEIGHTS if _folder(file) in has_safetensors else ())
        if not any(fnmatch.fnmatch(file.name, pattern) for pattern in skipped):
            chosen.append(file)
    return chosen


def _folder(file: HubFile) -> str:
    return str(PurePosixPath(file.name).parent)


def _is_missing(path: Path, file: HubFile) -> bool:
    """Whether a file must be downloaded; a damaged file is deleted, together with its blob."""
    if not path.is_file():
        return True
    if file_damage(path, file) is None:
        return False
    path.resolve().unlink()
    path.unlink(missing_ok=True)
    return True
