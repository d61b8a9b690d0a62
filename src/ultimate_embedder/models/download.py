"""Download a model from the hub: only the files that are needed to load it."""

from __future__ import annotations

import dataclasses
import fnmatch
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import DownloadError, ModelError
from ultimate_embedder.events import Emit, ModelFetchStarted
from ultimate_embedder.files import atomic_file, write_json
from ultimate_embedder.models.hub_cache import FILE_LISTS, HubFile, file_problems, problems_of, repo_folder
from ultimate_embedder.models.hub_client import HubClient, file_damage
from ultimate_embedder.models.paths import collision, file_problem, inside, require_own_folders, shown
from ultimate_embedder.models.registry import name_to_pull
from ultimate_embedder.models.trust import is_pickle, is_trusted, may_be_pickled, pickle_refusal
from ultimate_embedder.terminal import without_user
from ultimate_embedder.types import ModelSpec

SKIPPED = (
    "onnx/*", "*.onnx", "*.onnx_data", "openvino/*", "*.ot", "*.h5", "*.msgpack", "*.gguf", "*.tflite", "*.mlmodel",
    "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.pdf", "*.md", ".gitattributes", "training_args.bin",
    "optimizer.pt", "*.parquet", "*.csv",
)  # fmt: skip
CODE = ("*.py",)
SAFETENSORS = "*.safetensors"
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
SPARE_BYTES = 64 << 20  # of the disk, for what is not part of the model


@dataclasses.dataclass(frozen=True)
class Downloaded:
    """A downloaded model: its path, its commit, and the number of retries."""

    path: Path
    commit: str
    retries: int
    files: tuple[HubFile, ...]
    """All that a load needs, also those that were not downloaded."""


def is_weights(name: str) -> bool:
    """Whether a file has weights of a model."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in (SAFETENSORS, *OTHER_WEIGHTS))


def download(spec: ModelSpec, access: HubAccess, emit: Emit, *, weights: bool = True) -> Downloaded:
    """Download missing or damaged files of a model's current (or pinned) commit.

    Without `weights` only what describes the model: config, tokenizer. Then the snapshot is incomplete, and no
    reference of the cache names it: a complete one that is there stays the one in use.
    """
    client = HubClient(spec, access, emit)
    commit, everything = client.describe()
    trusted = is_trusted(spec, None, access.trusted)
    files = select_files(everything, with_code=trusted)
    if not trusted:
        files = _without_pickles(spec, files)
    if problem := _names_problem(files):
        raise DownloadError(
            name_to_pull(spec), f"cannot download {spec.key} from {without_user(access.endpoint)}: {problem}"
        )
    repo = repo_folder(access.download_folder, spec.hub_id)
    try:
        wanted = files if weights else [file for file in files if not is_weights(file.name)]
        _fetch_missing(client, repo, commit, files, wanted, emit)
        if spec.revision is None and weights:
            with atomic_file(repo / "refs" / "main") as ref:
                ref.write(commit.encode())
    except OSError as error:
        raise ModelError(f"{spec.key} cannot be stored in {repo}: {error}. Delete that folder, or mend it.") from error
    return Downloaded(repo / "snapshots" / commit, commit, client.retries, tuple(files))


def _fetch_missing(
    client: HubClient, repo: Path, commit: str, files: Sequence[HubFile], wanted: Sequence[HubFile], emit: Emit
) -> None:
    """Fetch the `wanted` ones of a model's files."""
    spec, snapshot = client.spec, repo / "snapshots" / commit
    require_own_folders(repo, ("blobs", "refs", FILE_LISTS, f"snapshots/{commit}"))
    require_own_folders(repo.parent, (f".locks/{repo.name}",))
    # the list of files is written first, so that an interrupted download is recognised
    write_json(repo / FILE_LISTS / f"{commit}.json", [dataclasses.asdict(file) for file in files])
    missing = [file for file in wanted if _is_missing(inside(snapshot, file.name), file, repo / "blobs")]
    if missing:
        needed = sum(file.size_bytes for file in missing)
        _require_space(repo, needed, spec)
        emit(ModelFetchStarted(model=spec.key, files=len(missing), size_bytes=needed))
    for file in missing:
        client.fetch(file, commit)
    check = problems_of if len(wanted) == len(files) else file_problems
    if problems := list(check(snapshot, wanted)):
        raise ModelError(f"{spec.key} is incomplete after its download: {'; '.join(problems)}. Run the command again.")


def _names_problem(files: Sequence[HubFile]) -> str | None:
    """What is wrong with the names of the files that would be written, or None."""
    for file in files:
        if problem := file_problem(file.name):
            return f"the name of the file {shown(file.name)} {problem}"
    if same := collision(file.name for file in files):
        return f"the files {shown(same[0])} and {shown(same[1])} would be in each other's place"
    return None


def _without_pickles(spec: ModelSpec, files: Sequence[HubFile]) -> list[HubFile]:
    """The files that are no pickles; raises if the weights of the model, or of a part of it, are one."""
    with_config = {_folder(file) for file in files if PurePosixPath(file.name).name.endswith("config.json")}
    pickles = [file for file in files if is_pickle(file.name) and not may_be_pickled(spec, file.name)]
    for file in pickles:
        if _folder(file) in with_config:
            raise pickle_refusal(spec, None, file.name, spec.hub_id)
    return [file for file in files if file not in pickles]


def _require_space(repo: Path, needed_bytes: int, spec: ModelSpec) -> None:
    have = sum(partial.stat().st_size for partial in (repo / "blobs").glob("*.incomplete"))
    free = shutil.disk_usage(repo).free
    if needed_bytes - have > free - SPARE_BYTES:
        raise ModelError(
            f"{spec.key} needs {needed_bytes / 1e9:,.1f} GB, and {repo} has {free / 1e9:,.1f} GB of free space. "
            "Delete something, or give another folder with --cache-dir."
        )


def select_files(files: Sequence[HubFile], with_code: bool = False) -> list[HubFile]:
    """The files that are needed to load a model: one format of the weights per folder, no other frameworks."""
    has_safetensors = {_folder(file) for file in files if fnmatch.fnmatch(file.name, SAFETENSORS)}
    chosen = []
    for file in files:
        skipped = SKIPPED + (() if with_code else CODE) + (OTHER_WEIGHTS if _folder(file) in has_safetensors else ())
        hidden = any(part.startswith(".") for part in PurePosixPath(file.name).parts)
        if not hidden and not any(fnmatch.fnmatch(file.name, pattern) for pattern in skipped):
            chosen.append(file)
    return chosen


def _folder(file: HubFile) -> str:
    return str(PurePosixPath(file.name).parent)


def _is_missing(path: Path, file: HubFile, blobs: Path) -> bool:
    """Whether a file must be downloaded; a damaged file is deleted, together with its blob."""
    if not path.is_file():
        return True
    if file_damage(path, file) is None:
        return False
    blob = path.resolve()
    if blob.parent == blobs.resolve():  # a link to anywhere else is not ours to follow
        blob.unlink()
    path.unlink(missing_ok=True)
    return True
