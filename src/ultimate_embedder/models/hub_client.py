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
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import DownloadError, ModelError
from ultimate_embedder.events import Emit, ModelBytesFetched, Retried
from ultimate_embedder.files import file_sha256, sync_folder
from ultimate_embedder.models.hub_answers import MOST_BYTES, AnswerError, parse_model_info
from ultimate_embedder.models.hub_cache import HubFile, repo_folder
from ultimate_embedder.models.paths import inside
from ultimate_embedder.models.registry import how_to_do_without_hub, name_to_pull
from ultimate_embedder.retry import Temporary, call_with_retries
from ultimate_embedder.terminal import without_user
from ultimate_embedder.types import ModelSpec

TEMPORARY_STATUS = (408, 425, 429)
BLOCK_BYTES = 1 << 20
REPORT_BYTES = 8 << 20
# of a hub that has not answered yet: where there is no network, waiting does not help
UNREACHABLE_TRIES = {"ConnectError": 2, "ConnectTimeout": 1}

Result = TypeVar("Result")


class _RefusedError(Exception):
    """The hub answered with an error status."""

    def __init__(self, status: int, reason: str, retry_after: str) -> None:
        super().__init__(f"{status} {reason}".strip())
        self.status = status
        self.retry_after = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None


class _DamagedError(Exception):
    """A downloaded file is truncated or damaged."""


class _TooLongError(Exception):
    """The hub sends more than it announced, or than an answer can have."""


HTTPX_ERRORS = ("RequestError", "InvalidURL", "StreamError")  # such as too many redirects, or one to no address
FROM_HUB = (_RefusedError, _DamagedError, _TooLongError, AnswerError)


class HubClient:
    """The calls to a hub for one model."""

    def __init__(self, spec: ModelSpec, access: HubAccess, emit: Emit) -> None:
        self.spec = spec
        self._access = access
        self._emit = emit
        self._repo = repo_folder(access.download_folder, spec.hub_id)
        self._unreported = 0
        self._has_answered = False
        self.retries = 0

    def describe(self) -> tuple[str, list[HubFile]]:
        """The current commit of the model's revision, and its files."""
        revision = f"/revision/{self.spec.revision}" if self.spec.revision else ""
        url = f"{self._access.endpoint}/api/models/{self.spec.hub_id}{revision}?blobs=true"

        def ask() -> tuple[str, list[HubFile]]:
            with _answer(url, {}) as response:
                body = b"".join(_limited(response, MOST_BYTES, "its description of the model"))
            return parse_model_info(body, self.spec.revision)

        return self._call(f"look up {self.spec.hub_id}", ask)

    def fetch(self, file: HubFile, commit: str) -> None:
        """Download one file into the cache; resumes a partial download."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        link = inside(self._repo / "snapshots" / commit, file.name)
        blob = self._repo / "blobs" / file.blob
        lock = self._repo.parent / ".locks" / self._repo.name / f"{file.blob}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        url = hf_hub_url(self.spec.hub_id, file.name, revision=commit, endpoint=self._access.endpoint)
        with WeakFileLock(lock):  # huggingface_hub's lock: wait for other processes that download this file
            if not _is_whole(blob, file):
                self._call(f"download {file.name} of {self.spec.key}", lambda: self._stream(url, blob, file))
        _link(link, blob)

    def _stream(self, url: str, blob: Path, file: HubFile) -> None:
        blob.parent.mkdir(parents=True, exist_ok=True)
        partial = blob.with_name(f"{blob.name}.incomplete")
        have = _resumable_bytes(partial, file)
        if have < file.size_bytes or not partial.exists():
            self._receive(url, partial, have, file)
        if partial.stat().st_size < file.size_bytes:
            raise _DamagedError(f"the download is incomplete, {partial.stat().st_size} of {file.size_bytes} bytes")
        if damage := file_damage(partial, file):
            partial.unlink()  # complete, but with wrong bytes: it cannot be resumed
            raise _DamagedError(damage)
        partial.replace(blob)
        sync_folder(blob.parent)

    def _receive(self, url: str, partial: Path, have: int, file: HubFile) -> None:
        """Add what the hub sends to a partial download; never more than the size of the file."""
        headers = {"Range": f"bytes={have}-"} if have else {}
        try:
            with _answer(url, headers) as response:
                goes_on = response.status_code == 206
                room = file.size_bytes - have if goes_on else file.size_bytes
                with open(partial, "ab" if goes_on else "wb") as out:
                    for block in _limited(response, room, f"the {file.size_bytes} bytes of {file.name}"):
                        out.write(block)
                        self._report(len(block))
                    out.flush()
                    os.fsync(out.fileno())
        except _TooLongError:
            partial.unlink(missing_ok=True)
            raise
        finally:
            self._report(0, at_once=True)

    def _report(self, size_bytes: int, at_once: bool = False) -> None:
        """Tell that bytes were received, a few megabytes at a time."""
        self._unreported += size_bytes
        if self._unreported >= REPORT_BYTES or at_once:
            self._emit(ModelBytesFetched(model=self.spec.key, size_bytes=self._unreported))
            self._unreported = 0

    def _call(self, what: str, call: Callable[[], Result]) -> Result:
        def note(attempt: int, wait_s: float, reason: str) -> None:
            self.retries += 1
            self._emit(Retried(what=what, attempt=attempt, wait_seconds=wait_s, reason=without_user(reason)))

        try:
            result = call_with_retries(call, self._temporary, note, self._access.retry)
            self._has_answered = True
            return result
        except Exception as error:
            from_hub = isinstance(error, FROM_HUB) or temporary(error) or _is_of_httpx(error, *HTTPX_ERRORS)
            if not from_hub and not isinstance(error, OSError):
                raise
            words = self._refusal(error) if isinstance(error, FROM_HUB) else self._failure(error)
            problem = without_user(f"cannot {what} from {self._access.endpoint}: {words}")  # it is stored
            if not from_hub:  # of this machine, such as a full disk
                raise ModelError(problem) from error
            raise DownloadError(name_to_pull(self.spec), problem) from error

    def _temporary(self, error: BaseException) -> Temporary | None:
        passing = temporary(error)
        if passing is None or self._has_answered:
            return passing
        tries = next((most for name, most in UNREACHABLE_TRIES.items() if _is_of_httpx(error, name)), None)
        return replace(passing, tries=tries)

    def _failure(self, error: Exception) -> str:
        if self._has_answered or not _is_of_httpx(error, *UNREACHABLE_TRIES):
            return _describe_error(error)
        return f"the hub cannot be reached ({_describe_error(error)}). {how_to_do_without_hub(self.spec)}"

    def _refusal(self, error: Exception) -> str:
        if not isinstance(error, _RefusedError):
            return f"{error}. Check that HF_ENDPOINT, if it is set, names the hub that you mean, or try again later."
        if error.status == 404 and self.spec.revision:
            return f"{error}. There is no commit {self.spec.revision}, or no such model."
        if error.status in (401, 403):
            hint = "Run 'hf auth login', and request access on the model's page."
            return f"{error}. There is no such model, or you have no access. {hint}"
        return f"{error}. The hub has no such model." if error.status == 404 else str(error)


def file_damage(path: Path, file: HubFile) -> str | None:
    """What is wrong with a file, compared with the hub's checksum, or None."""
    if file.sha256:
        return None if file_sha256(path) == file.sha256 else f"its sha256 is not {file.sha256}"
    new = hashlib.sha1 if len(file.blob) == 40 else hashlib.sha256
    git = new(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with open(path, "rb") as content:
        while block := content.read(BLOCK_BYTES):
            git.update(block)
    return None if git.hexdigest() == file.blob else f"its git hash is not {file.blob}"


def temporary(error: BaseException) -> Temporary | None:
    """The `Temporary` of an error that can be retried, else None."""
    if isinstance(error, _RefusedError):
        passing = error.status in TEMPORARY_STATUS or error.status >= 500
        return Temporary(str(error), error.retry_after) if passing else None
    if isinstance(error, _DamagedError):
        return Temporary(str(error))
    if _is_of_httpx(error, "TransportError") and not _is_of_httpx(error, "UnsupportedProtocol"):
        return Temporary(_describe_error(error))
    return None


def _is_of_httpx(error: BaseException, *names: str) -> bool:
    """Whether an error is of one of these classes of httpx, which has two package names."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _resumable_bytes(partial: Path, file: HubFile) -> int:
    """The bytes of a partial download that can be resumed; what cannot be one is deleted."""
    if partial.is_symlink() or (partial.exists() and partial.stat().st_size > file.size_bytes):
        partial.unlink()
    return partial.stat().st_size if partial.exists() else 0


def _is_whole(blob: Path, file: HubFile) -> bool:
    """Whether the blob is there with the right bytes; a damaged one is deleted."""
    if blob.is_file() and not blob.is_symlink() and file_damage(blob, file) is None:
        return True
    blob.unlink(missing_ok=True)
    return False


def _limited(response: Any, most_bytes: int, what: str) -> Iterator[bytes]:
    """The body of a response, as it was sent; stops as soon as it is longer than `most_bytes`."""
    announced = response.headers.get("Content-Length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:32]) > most_bytes:
        raise _TooLongError(f"it announces {announced[:32]} more bytes, too many for {what}")
    received = 0
    for block in response.iter_raw(BLOCK_BYTES):  # raw: a few compressed bytes could become terabytes
        received += len(block)
        if received > most_bytes:
            raise _TooLongError(f"it sends more than {what}; the download was stopped and deleted")
        yield block


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
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            raise AnswerError(f"its answer is compressed ({encoding[:40]}), which was not asked for")
        yield response


def _link(link: Path, blob: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(os.path.relpath(blob, link.parent))
    except OSError:  # Windows without permission to create links
        shutil.copyfile(blob, link)


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
