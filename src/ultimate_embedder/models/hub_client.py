"""Calls to a hub, with retries: get the file list of a model, download a file.

The retries of huggingface_hub differ by version, and some versions discard partial downloads. So its session, tokens
and cache layout are used, but not its download functions.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import DownloadError, ModelError
from ultimate_embedder.events import Emit, ModelBytesFetched, Retried
from ultimate_embedder.files import file_sha256, sync_folder
from ultimate_embedder.models.hub_cache import HubFile, repo_folder
from ultimate_embedder.models.registry import name_to_pull
from ultimate_embedder.retry import Temporary, call_with_retries
from ultimate_embedder.types import ModelSpec

TEMPORARY_STATUS = (408, 425, 429)
BLOCK_BYTES = 1 << 20
REPORT_BYTES = 8 << 20

Result = TypeVar("Result")


class _RefusedError(Exception):
    """The hub answered with an error status."""

    def __init__(self, status: int, reason: str, retry_after: str) -> None:
        super().__init__(f"{status} {reason}".strip())
        self.status = status
        self.retry_after = float(retry_after) if retry_after.isdigit() else None


class _DamagedError(Exception):
    """A downloaded file is truncated or damaged."""


class HubClient:
    """The calls to a hub for one model."""

    def __init__(self, spec: ModelSpec, access: HubAccess, emit: Emit) -> None:
        self._spec = spec
        self._access = access
        self._emit = emit
        self._repo = repo_folder(access.download_folder, spec.hub_id)
        self.retries = 0

    def describe(self) -> tuple[str, list[HubFile]]:
        """The current commit of the model's revision, and its files."""
        revision = f"/revision/{self._spec.revision}" if self._spec.revision else ""
        url = f"{self._access.endpoint}/api/models/{self._spec.hub_id}{revision}?blobs=true"

        def ask() -> Any:
            with _answer(url, {}) as response:
                response.read()
                return response.json()

        described = self._call(f"look up {self._spec.hub_id}", ask)
        return described["sha"], [_hub_file(entry) for entry in described["siblings"]]

    def fetch(self, file: HubFile, commit: str) -> None:
        """Download one file into the cache; resumes a partial download."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        link = self._repo / "snapshots" / commit / file.name
        blob = self._repo / "blobs" / file.blob
        lock = self._repo.parent / ".locks" / self._repo.name / f"{file.blob}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        url = hf_hub_url(self._spec.hub_id, file.name, revision=commit, endpoint=self._access.endpoint)
        with WeakFileLock(lock):  # huggingface_hub's lock: wait for other processes that download this file
            if not blob.exists():
                self._call(f"download {file.name} of {self._spec.key}", lambda: self._stream(url, blob, file))
        _link(link, blob)

    def _stream(self, url: str, blob: Path, file: HubFile) -> None:
        blob.parent.mkdir(parents=True, exist_ok=True)
        partial = blob.with_name(f"{blob.name}.incomplete")
        have = partial.stat().st_size if partial.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        with _answer(url, headers) as response, open(partial, "ab" if response.status_code == 206 else "wb") as out:
            unreported = 0
            for block in response.iter_bytes(BLOCK_BYTES):
                out.write(block)
                unreported += len(block)
                if unreported >= REPORT_BYTES:
                    self._emit(ModelBytesFetched(model=self._spec.key, size_bytes=unreported))
                    unreported = 0
            out.flush()
            os.fsync(out.fileno())
        self._emit(ModelBytesFetched(model=self._spec.key, size_bytes=unreported))
        if file.size is not None and partial.stat().st_size < file.size:
            raise _DamagedError(f"the download is incomplete, {partial.stat().st_size} of {file.size} bytes")
        if damage := file_damage(partial, file):
            partial.unlink()  # complete, but with wrong bytes: it cannot be resumed
            raise _DamagedError(damage)
        partial.replace(blob)
        sync_folder(blob.parent)

    def _call(self, what: str, call: Callable[[], Result]) -> Result:
        def note(attempt: int, wait_s: float, reason: str) -> None:
            self.retries += 1
            self._emit(Retried(what=what, attempt=attempt, wait_seconds=wait_s, reason=reason))

        try:
            return call_with_retries(call, temporary, note, self._access.retry)
        except Exception as error:
            from_hub = isinstance(error, _RefusedError | _DamagedError) or temporary(error)
            if not from_hub and not isinstance(error, OSError):
                raise
            words = self._refusal(error) if isinstance(error, _RefusedError) else _describe_error(error)
            problem = f"cannot {what} from {self._access.endpoint}: {words}"
            if not from_hub:  # of this machine, such as a full disk
                raise ModelError(problem) from error
            raise DownloadError(name_to_pull(self._spec), problem) from error

    def _refusal(self, error: _RefusedError) -> str:
        if error.status == 404 and self._spec.revision:
            return f"{error}. There is no commit {self._spec.revision}, or no such model."
        if error.status in (401, 403):
            hint = "Run 'hf auth login', and request access on the model's page."
            return f"{error}. There is no such model, or you have no access. {hint}"
        return f"{error}. The hub has no such model." if error.status == 404 else str(error)


def file_damage(path: Path, file: HubFile) -> str | None:
    """What is wrong with a file, compared with the hub's checksum, or None."""
    if file.sha256:
        return None if file_sha256(path) == file.sha256 else f"its sha256 is not {file.sha256}"
    content = path.read_bytes()
    git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    return None if git == file.blob else f"its git hash is not {file.blob}"


def temporary(error: BaseException) -> Temporary | None:
    """The `Temporary` of an error that can be retried, else None."""
    if isinstance(error, _RefusedError):
        passing = error.status in TEMPORARY_STATUS or error.status >= 500
        return Temporary(str(error), error.retry_after) if passing else None
    if isinstance(error, _DamagedError):
        return Temporary(str(error))
    if any(kind.__name__ == "TransportError" for kind in type(error).__mro__):  # of httpx, which has two package names
        return Temporary(_describe_error(error))
    return None


@contextlib.contextmanager
def _answer(url: str, headers: dict[str, str]) -> Iterator[Any]:
    """Stream a response of the hub, with the user's token; raises for an error status."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    sent = {**build_hf_headers(), **headers, "Accept-Encoding": "identity"}
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=sent, timeout=timeout, follow_redirects=True) as response:
        if response.status_code >= 400:
            raise _RefusedError(response.status_code, response.reason_phrase, response.headers.get("Retry-After", ""))
        yield response


def _hub_file(entry: dict[str, Any]) -> HubFile:
    lfs = entry.get("lfs") or {}
    sha256 = lfs.get("sha256") or lfs.get("oid")
    return HubFile(entry["rfilename"], entry.get("size"), sha256, sha256 or entry["blobId"])


def _link(link: Path, blob: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(os.path.relpath(blob, link.parent))
    except OSError:  # Windows without permission to create links
        shutil.copyfile(blob, link)


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
