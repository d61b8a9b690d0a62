"""Fetch a model from the hub: only the files that are needed, again and again until each is whole."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import ModelError
from ultimate_embedder.events import Emit, ModelFileFetched, Retried
from ultimate_embedder.files import whole_file, write_json
from ultimate_embedder.models.hub_cache import FILE_LISTS, HubFile, problems_of, repo_folder
from ultimate_embedder.retry import Temporary, call_with_retries
from ultimate_embedder.types import ModelSpec

SKIPPED = (
    "onnx/*", "*.onnx", "*.onnx_data", "openvino/*", "*.ot", "*.h5", "*.msgpack", "*.gguf", "*.tflite", "*.mlmodel",
    "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.pdf", "*.md", ".gitattributes", "training_args.bin",
    "optimizer.pt", "*.parquet", "*.csv",
)  # fmt: skip
CODE = ("*.py",)
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth")
TEMPORARY_STATUS = (408, 425, 429)

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Downloaded:
    """Where a model was put, which commit it is, and how many calls had to be repeated."""

    path: Path
    commit: str
    retries: int


class HubClient:
    """The two calls we make to a hub, each tried again while the error may pass."""

    def __init__(self, spec: ModelSpec, access: HubAccess, emit: Emit) -> None:
        self._spec = spec
        self._access = access
        self._emit = emit
        self.retries = 0

    def describe(self) -> tuple[str, list[HubFile]]:
        """The current commit, and every file of it."""
        from huggingface_hub import HfApi

        def ask() -> Any:
            return HfApi().model_info(self._spec.hub_id, revision=self._spec.revision, files_metadata=True)

        info = self._call(f"look up {self._spec.hub_id}", ask)
        return str(info.sha), [_hub_file(sibling) for sibling in info.siblings or []]

    def fetch(self, file: HubFile, commit: str) -> None:
        """Put one file into the cache; what an earlier try has fetched of it is not fetched again."""
        from huggingface_hub import hf_hub_download

        def download() -> str:
            folder = self._access.download_folder
            return hf_hub_download(self._spec.hub_id, file.name, revision=commit, cache_dir=folder)

        self._call(f"fetch {file.name} of {self._spec.key}", download)

    def _call(self, what: str, call: Callable[[], Result]) -> Result:
        def note(attempt: int, wait_s: float, reason: str) -> None:
            self.retries += 1
            self._emit(Retried(what=what, attempt=attempt, wait_seconds=wait_s, reason=reason))

        try:
            return call_with_retries(call, temporary, note, self._access.retry)
        except Exception as error:
            if isinstance(error, OSError | ValueError) or temporary(error):
                raise ModelError(f"cannot {what} from {self._access.endpoint}: {_in_words(error)}") from error
            raise


def download(spec: ModelSpec, access: HubAccess, emit: Emit, client: HubClient | None = None) -> Downloaded:
    """Fetch what is missing of a model's current (or pinned) commit."""
    client = client or HubClient(spec, access, emit)
    with _hub_bars(access.bars):
        commit, everything = client.describe()
        files = select_files(everything, with_code=spec.key in access.trusted)
        repo = repo_folder(access.download_folder, spec.hub_id)
        # what is to be fetched is noted first: an interrupted download is then known to be one
        write_json(repo / FILE_LISTS / f"{commit}.json", [dataclasses.asdict(file) for file in files])
        snapshot = repo / "snapshots" / commit
        for file in files:
            _discard_damaged(snapshot, file)
            client.fetch(file, commit)
            emit(ModelFileFetched(model=spec.key, file=file.name, size_bytes=file.size or 0))
    if problems := list(problems_of(snapshot, files)):
        raise ModelError(f"{spec.key} is not whole after its download: {'; '.join(problems)}. Run the command again.")
    if spec.revision is None:
        with whole_file(repo / "refs" / "main") as ref:
            ref.write(commit.encode())
    return Downloaded(snapshot, commit, client.retries)


def select_files(files: Sequence[HubFile], with_code: bool = False) -> list[HubFile]:
    """The files that loading needs: one format of the weights, no copies for other frameworks."""
    has_safetensors = any(file.name.endswith(".safetensors") for file in files)
    skipped = SKIPPED + (() if with_code else CODE) + (OTHER_WEIGHTS if has_safetensors else ())
    return [file for file in files if not any(fnmatch.fnmatch(file.name, pattern) for pattern in skipped)]


def temporary(error: BaseException) -> Temporary | None:
    """Whether an error of the hub client may pass. It differs by version, so names and causes are looked at."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return None
    response = getattr(error, "response", None)
    if isinstance(error, HfHubHTTPError) and response is not None:
        status = int(response.status_code)
        if status in TEMPORARY_STATUS or status >= 500:
            return Temporary(f"{status} {response.reason_phrase}".strip(), _retry_after(response))
        return None
    if any(kind.__name__ == "TransportError" for kind in type(error).__mro__):  # of httpx, under either name
        return Temporary(f"{type(error).__name__}: {error}".rstrip(": "))
    if isinstance(error, ConnectionError | TimeoutError):
        return Temporary(f"{type(error).__name__}: {error}")
    if isinstance(error, OSError) and "onsistency check failed" in str(error):
        return Temporary("the file came cut off")
    if isinstance(error, LocalEntryNotFoundError):
        cause = error.__cause__ or error.__context__
        return temporary(cause) if cause is not None else Temporary("no answer")
    return None


def _retry_after(response: Any) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None


def _hub_file(sibling: Any) -> HubFile:
    lfs = sibling.lfs
    sha256 = (lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)) if lfs else None
    return HubFile(sibling.rfilename, sibling.size, sha256)


def _discard_damaged(snapshot: Path, file: HubFile) -> None:
    """Remove a file of the wrong size, with the blob behind it: the client takes what is there for whole."""
    path = snapshot / file.name
    if not path.is_file() or file.size is None or path.stat().st_size == file.size:
        return
    path.resolve().unlink()
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def _hub_bars(shown: bool) -> Iterator[None]:
    import huggingface_hub.utils

    hub_bars: Any = huggingface_hub.utils
    were_off = hub_bars.are_progress_bars_disabled()
    if not shown:
        hub_bars.disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            hub_bars.enable_progress_bars()


def _in_words(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
