"""Upload collections to a Qdrant server: resumable, no duplicate points, counted at the end."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http import api_client
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from ultimate_embedder.config import retry_policy
from ultimate_embedder.errors import UploadError, UsageError
from ultimate_embedder.events import BatchUploaded, Emit, Retried, UploadFinished, UploadStarted
from ultimate_embedder.export.points import LONGEST_NAME
from ultimate_embedder.export.points_file import PointsFile
from ultimate_embedder.files import file_sha256, write_json
from ultimate_embedder.names import name_problem
from ultimate_embedder.output import CollectionOutput, Output, link_target
from ultimate_embedder.retry import RetryPolicy, Temporary, call_with_retries
from ultimate_embedder.types import UNNAMED, VectorSpec

BATCH_POINTS = 128
COUNT_POINTS = 1000
REQUEST_BYTES = 16 << 20  # half of Qdrant's default limit
NUMBER_BYTES = 22  # a float32 in JSON, at most
JOURNAL_EVERY_POINTS = 2048
TIMEOUT_S = 60
LONGEST_NAME_BYTES = 4 * LONGEST_NAME  # the server counts characters

Result = TypeVar("Result")


@dataclass(frozen=True)
class UploadReport:
    """The result of an upload."""

    collection: str
    target: str
    points: int
    counted: int
    resumed_at: int


def upload(
    folder: Path,
    url: str,
    emit: Emit,
    target: str | None = None,
    api_key: str | None = None,
    policy: RetryPolicy | None = None,
) -> list[UploadReport]:
    """Upload every collection in `folder` (or `folder` itself, if it is one) to the Qdrant server at `url`."""
    if target is not None and (problem := name_problem(target, longest_bytes=LONGEST_NAME_BYTES)):
        raise UsageError(f"--collection {target!r} {problem}. Choose another name.")
    files = [PointsFile.open(path) for path in _find_points(folder)]
    if target is not None and len(files) > 1:
        names = ", ".join(file.collection for file in files)
        raise UploadError(
            f"{folder} has several collections ({names}), but --collection names one target. "
            f"Upload them one by one: {folder / files[0].collection}"
        )
    url, user = _without_user(url)
    client = _connect(url, user, api_key)
    try:
        server = _Server(client, url, emit, policy or retry_policy())
        return [_upload_one(file, target or _own_target(file), server, emit) for file in files]
    finally:
        client.close()


def _without_user(url: str) -> tuple[str, str | None]:
    """A URL without user and password, which are neither printed nor stored, and both in one word; None without any."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    user, at, place = rest.rpartition("@")
    if "/" in user:
        raise UsageError("--url has an @ after a /. In a user name or password write %40 for @, and %2F for /.")
    return f"{scheme}{mark}{place}", user if at else None


def _connect(url: str, user: str | None, api_key: str | None) -> QdrantClient:
    signed_in = base64.b64encode(unquote(user).encode()).decode() if user is not None else None
    headers = {"Authorization": f"Basic {signed_in}"} if signed_in is not None else {}
    try:
        return QdrantClient(url=url, api_key=api_key, timeout=TIMEOUT_S, check_compatibility=False, metadata=headers)
    except ValueError as error:  # urllib3's LocationParseError is one too
        raise UsageError(f"--url {url}: {error}. Write http://localhost:6333, for example.") from error


def _own_target(file: PointsFile) -> str:
    if problem := name_problem(file.target, longest_bytes=LONGEST_NAME_BYTES):
        raise UploadError(
            f"{file.path} is for a collection {file.target!r}, which {problem}. Give a name with --collection."
        )
    return file.target


def _find_points(folder: Path) -> list[Path]:
    here = CollectionOutput(folder).points
    found = [here] if here.exists() else [each.points for each in Output(folder) if each.points.exists()]
    for path in found if here not in found else ():
        if target := link_target(path.parent):  # how far it got would be written there
            raise UploadError(f"{path.parent} is a link to {target}. Upload that folder by itself.")
    if not found:
        raise UploadError(
            f"no {here.name} in {folder} or its subfolders. "
            "Run embed again with --export parquet: stored vectors are reused."
        )
    return found


def _upload_one(file: PointsFile, target: str, server: _Server, emit: Emit) -> UploadReport:
    started = time.perf_counter()
    created = server.ensure_collection(target, file.vectors)
    journal = _Journal(CollectionOutput(file.path.parent).upload_state, server.url, target, file_sha256(file.path))
    resumed_at = 0 if created else min(journal.uploaded(), server.count(target))
    emit(
        UploadStarted(
            collection=file.collection,
            target=target,
            points=file.points,
            uploaded=resumed_at,
            created=created,
        )
    )
    position = 0
    for ids, vectors, payloads in file.batches(BATCH_POINTS):
        position += len(ids)
        if position <= resumed_at:
            continue
        for part in _within_limit(payloads, sum(spec.dim or 0 for spec in file.vectors) * NUMBER_BYTES):
            lists = {name: each[part].tolist() for name, each in vectors.items()}
            batch = models.Batch(ids=list(ids[part]), vectors=lists.get(UNNAMED, lists), payloads=payloads[part])
            server.upsert(target, batch)
        journal.note(position)
        emit(BatchUploaded(collection=file.collection, target=target, points=len(ids)))
    journal.note(position, force=True)
    counted = sum(server.count(target, ids) for ids in file.ids(COUNT_POINTS))
    if counted != file.points:
        journal.forget()
        raise UploadError(
            f"{target} holds {counted} of the {file.points} points of {file.collection} after the upload. "
            "Another program may be changing it. Run the same command again to send all points again."
        )
    journal.forget()  # the next upload starts from the first point, as the server may have changed
    seconds = time.perf_counter() - started
    emit(UploadFinished(collection=file.collection, target=target, counted=counted, seconds=seconds))
    return UploadReport(file.collection, target, file.points, counted, resumed_at)


def _within_limit(payloads: list[dict[str, Any]], vector_bytes: int) -> Iterator[slice]:
    """Split a batch into requests below Qdrant's size limit."""
    start, size = 0, 0
    for row, payload in enumerate(payloads):
        more = len(json.dumps(payload)) + vector_bytes
        if size + more > REQUEST_BYTES and row > start:
            yield slice(start, row)
            start, size = row, 0
        size += more
    yield slice(start, len(payloads))


def _misfit(vectors: Any, ours: Sequence[VectorSpec]) -> str | None:
    """How the vectors of a collection differ from ours, or None."""
    there = {UNNAMED: vectors} if isinstance(vectors, models.VectorParams) else dict(vectors or {})
    for spec in ours:
        if spec.name == UNNAMED and UNNAMED not in there:
            return f"named vectors, but ours are unnamed with {spec.dim} dimensions"
    if set(there) != {spec.name for spec in ours}:
        return f"{_names(there)}, but ours are named {', '.join(spec.name for spec in ours)}"
    for spec in ours:
        which, theirs = f" named {spec.name}" if spec.name else "", there[spec.name]
        if theirs.size != spec.dim:
            return f"vectors{which} with {theirs.size} dimensions, but ours have {spec.dim}"
        if theirs.distance != models.Distance.COSINE:
            return f"vectors{which} with {theirs.distance.value} distance, but ours need Cosine"
    return None


def _names(vectors: Iterable[str]) -> str:
    names = [name for name in vectors if name]
    return f"vectors named {', '.join(names)}" if names else "unnamed vectors"


class _Journal:
    """Records how many points of a file were uploaded, so that an interrupted upload can be resumed."""

    def __init__(self, path: Path, url: str, target: str, checksum: str) -> None:
        self._path = path
        self._identity = {"url": url, "target": target, "sha256": checksum}
        self._noted = 0

    def uploaded(self) -> int:
        """The number of points already uploaded; 0 if the journal is of another file or target."""
        try:
            noted = json.loads(self._path.read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return 0
        points = noted.pop("points", 0)
        return int(points) if noted == self._identity else 0

    def note(self, points: int, force: bool = False) -> None:
        """Record that the first `points` points are on the server."""
        if force or points - self._noted >= JOURNAL_EVERY_POINTS:
            write_json(self._path, {**self._identity, "points": points})
            self._noted = points

    def forget(self) -> None:
        """Delete the journal: the next upload starts from the first point."""
        self._path.unlink(missing_ok=True)


def _path_part(name: str) -> str:
    """The name of a collection, quoted for older clients, which put it into the path as it is."""
    return name if hasattr(api_client, "quote_path_params") else quote(name, safe="")


class _Server:
    """The calls to the server, each with retries."""

    def __init__(self, client: QdrantClient, url: str, emit: Emit, policy: RetryPolicy) -> None:
        self.url = url
        self._client = client
        self._emit = emit
        self._policy = policy

    def ensure_collection(self, target: str, ours: Sequence[VectorSpec]) -> bool:
        """Create the collection, or check that its vectors match ours; True if it was created."""
        exists = self._call("look up the collection", lambda: self._client.collection_exists(_path_part(target)))
        if not exists:
            self._call("create the collection", lambda: self._create(target, ours))
        found = self._call("read the collection", lambda: self._client.get_collection(_path_part(target)))
        vectors = found.config.params.vectors
        if problem := _misfit(vectors, ours):
            raise UploadError(
                f"collection {target} on {self.url} has {problem}. "
                "Give another name with --collection, or delete that collection."
            )
        return not exists

    def _create(self, target: str, ours: Sequence[VectorSpec]) -> None:
        cosine = models.Distance.COSINE
        params = {
            spec.name: models.VectorParams(size=spec.dim, distance=cosine) for spec in ours if spec.dim is not None
        }
        try:
            self._client.create_collection(_path_part(target), vectors_config=params.get(UNNAMED, params))
        except UnexpectedResponse as error:
            if error.status_code != HTTPStatus.CONFLICT:
                raise  # conflict: an earlier attempt succeeded and its response was lost

    def upsert(self, target: str, batch: models.Batch) -> None:
        """Send points and wait until they are applied."""
        self._call("send points", lambda: self._client.upsert(_path_part(target), points=batch, wait=True))

    def count(self, target: str, ids: list[str] | None = None) -> int:
        """The number of points on the server: all, or those with these ids."""
        condition = models.Filter(must=[models.HasIdCondition(has_id=list(ids))]) if ids else None
        name = _path_part(target)
        counted = self._call("count points", lambda: self._client.count(name, count_filter=condition, exact=True))
        return int(counted.count)

    def _call(self, what: str, call: Callable[[], Result]) -> Result:
        def note(attempt: int, wait_s: float, reason: str) -> None:
            self._emit(Retried(what=what, attempt=attempt, wait_seconds=wait_s, reason=reason))

        try:
            return call_with_retries(call, _temporary, note, self._policy)
        except (ApiException, QdrantException) as error:
            raise UploadError(f"cannot {what} on {self.url}: {_describe_error(error)}") from error
        except json.JSONDecodeError as error:
            raise UploadError(f"cannot {what} on {self.url}: the response is not from Qdrant. Check --url.") from error


def _temporary(error: Exception) -> Temporary | None:
    if isinstance(error, ResourceExhaustedResponse):
        return Temporary("429, too many requests", error.retry_after_s)
    if isinstance(error, QdrantException) and "Retry-After" in str(error):  # a date, which the client cannot parse
        return Temporary("429, too many requests")
    if isinstance(error, UnexpectedResponse) and error.status_code is not None:
        if error.status_code == 429 or error.status_code >= 500:
            return Temporary(f"{error.status_code} {error.reason_phrase}".strip())
        return None
    if isinstance(error, ResponseHandlingException):
        return Temporary(_describe_error(error))
    return None


def _describe_error(error: Exception) -> str:
    if isinstance(error, UnexpectedResponse):
        hint = {401: ". Pass the API key with --api-key-env VAR", 403: ". The API key has no write access"}
        content = error.content.decode("utf-8", "replace")[:200]
        return f"{error.status_code} {error.reason_phrase}{hint.get(error.status_code or 0, '')} {content}".strip()
    if isinstance(error, ResponseHandlingException):
        return f"{type(error.source).__name__}: {error.source}"
    return str(error)
