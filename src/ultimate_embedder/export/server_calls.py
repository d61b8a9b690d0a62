"""The calls to a Qdrant server, each with retries. Whatever it answers, an `UploadError` says what is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http import api_client
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from ultimate_embedder.errors import UploadError
from ultimate_embedder.events import Emit, Retried
from ultimate_embedder.retry import RetryPolicy, Temporary, call_with_retries
from ultimate_embedder.types import UNNAMED, VectorSpec

RECORD_KEY = "ultimate_embedder"  # in the metadata of a collection, or in the payloads where there is no metadata
NOT_QDRANT = "the answer is not one of Qdrant's"
SHOWN_CHARACTERS = 200
# what the client raises for answers that it does not expect: no JSON, no UTF-8, other types, nothing at all
UNEXPECTED_ANSWER = (ValueError, TypeError, AttributeError, KeyError, AssertionError, RecursionError)

Result = TypeVar("Result")


class _NotStoredError(Exception):
    """A point that the server has acknowledged and does not have."""


class Server:
    """A Qdrant server."""

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
        if problem := _misfit(self._config(target)["params"].get("vectors"), ours):
            raise UploadError(
                f"collection {target} on {self.url} has {problem}. "
                "Give another name with --collection, or delete that collection."
            )
        return not exists

    def read_record(self, target: str) -> Any:
        """What we have noted in the metadata of the collection; None if there is nothing."""
        metadata = self._config(target).get("metadata")
        if metadata is None:
            return None
        if not isinstance(metadata, Mapping):
            raise UploadError(f"cannot read the metadata of {target} on {self.url}: {NOT_QDRANT}. Check --url.")
        return metadata.get(RECORD_KEY)

    def write_record(self, target: str, record: Mapping[str, Any]) -> bool:
        """Note something in the metadata of the collection; False if the server is older than 1.16, and has none."""

        def send() -> None:
            body = json.dumps({"metadata": {RECORD_KEY: record}})
            try:
                self._request("PATCH", target, content=body, headers={"Content-Type": "application/json"})
            except UnexpectedResponse as error:
                if _is_temporary_status(error.status_code) or error.status_code in (401, 403):
                    raise

        self._call("write the metadata of the collection", send)
        return bool(self.read_record(target) == record)

    def marked_record(self, target: str) -> Any:
        """What we have noted in the payloads, on a server without metadata; None if no point has such a note."""
        marked = models.IsEmptyCondition(is_empty=models.PayloadField(key=RECORD_KEY))
        condition = models.Filter(must_not=[marked])

        def read() -> Any:
            points, _ = self._client.scroll(_path_part(target), condition, limit=1, with_payload=[RECORD_KEY])
            return (points[0].payload or {}).get(RECORD_KEY) if points else None

        return self._call("read a point", read)

    def upsert(self, target: str, batch: models.Batch) -> None:
        """Send points and wait until they are applied."""
        self._call("send points", lambda: self._client.upsert(_path_part(target), points=batch, wait=True))

    def count(self, target: str, ids: list[str] | None = None) -> int:
        """The number of points on the server: all, or those with these ids."""
        condition = models.Filter(must=[models.HasIdCondition(has_id=list(ids))]) if ids else None
        name = _path_part(target)
        counted = self._call("count points", lambda: self._client.count(name, count_filter=condition, exact=True).count)
        return int(counted)

    def require_stored(self, target: str, sent: Mapping[str, str]) -> None:
        """Read points back, one at a time, and compare them with the `payload_digest` of what was sent, by id."""

        def read(point: str, digest: str) -> None:
            records = self._client.retrieve(_path_part(target), [point], with_payload=True)
            if not records or payload_digest(records[0].payload or {}) != digest:
                raise _NotStoredError("a point is not what was sent, or not yet")

        for point, digest in sent.items():
            try:
                self._call("read a point back", lambda point=point, digest=digest: read(point, digest))  # type: ignore[misc]
            except _NotStoredError as error:
                raise UploadError(
                    f"{target} on {self.url} does not have point {point} as it was sent, though it was acknowledged. "
                    "Another program may be changing it. Run the same command again to send all points again."
                ) from error

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

    def _config(self, target: str) -> dict[str, Any]:
        """The configuration of a collection, with its parameters."""

        def read() -> dict[str, Any]:
            answer = self._request("GET", target)
            config = answer["result"]["config"]
            if not isinstance(config, dict) or not isinstance(config["params"], dict):
                raise TypeError
            return config

        return self._call("read the collection", read)

    def _request(self, method: str, target: str, **options: Any) -> Any:
        """A call that clients before 1.16 do not offer, or whose answer they do not keep in full."""
        return self._client.http.client.request(
            type_=dict[str, Any],
            method=method,
            url="/collections/{collection_name}",
            path_params={"collection_name": _path_part(target)},
            **options,
        )

    def _call(self, what: str, call: Callable[[], Result]) -> Result:
        def note(attempt: int, wait_s: float, reason: str) -> None:
            self._emit(Retried(what=what, attempt=attempt, wait_seconds=wait_s, reason=reason))

        try:
            return call_with_retries(call, _temporary, note, self._policy)
        except (ApiException, QdrantException) as error:
            raise UploadError(f"cannot {what} on {self.url}: {_describe_error(error)}") from error
        except UNEXPECTED_ANSWER as error:
            raise UploadError(f"cannot {what} on {self.url}: {NOT_QDRANT}. Check --url.") from error


def payload_digest(payload: Mapping[str, Any]) -> str:
    """A checksum of the texts in a payload; numbers may come back from a server in another form."""
    texts = {name: value for name, value in payload.items() if isinstance(value, str)}
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()


def _misfit(vectors: Any, ours: Sequence[VectorSpec]) -> str | None:
    """How the vectors of a collection differ from ours, or None."""
    there = {UNNAMED: vectors} if isinstance(vectors, dict) and "size" in vectors else vectors or {}
    if not isinstance(there, dict) or not all(isinstance(each, dict) for each in there.values()):
        return "vectors that this program does not know"
    for spec in ours:
        if spec.name == UNNAMED and UNNAMED not in there:
            return f"named vectors, but ours are unnamed with {spec.dim} dimensions"
    if set(there) != {spec.name for spec in ours}:
        return f"{_names(there)}, but ours are named {', '.join(spec.name for spec in ours)}"
    for spec in ours:
        which, theirs = f" named {spec.name}" if spec.name else "", there[spec.name]
        if theirs.get("size") != spec.dim:
            return f"vectors{which} with {_shown(theirs.get('size'))} dimensions, but ours have {spec.dim}"
        if theirs.get("distance") != models.Distance.COSINE.value:
            return f"vectors{which} with {_shown(theirs.get('distance'))} distance, but ours need Cosine"
    return None


def _names(vectors: Iterable[str]) -> str:
    names = [name for name in vectors if name]
    return f"vectors named {', '.join(names)}" if names else "unnamed vectors"


def _shown(value: Any) -> str:
    return str(value)[:SHOWN_CHARACTERS]


def _path_part(name: str) -> str:
    """The name of a collection, quoted for older clients, which put it into the path as it is."""
    return name if hasattr(api_client, "quote_path_params") else quote(name, safe="")


def _is_temporary_status(status: int | None) -> bool:
    return status is not None and (status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR)


def _temporary(error: Exception) -> Temporary | None:
    if isinstance(error, _NotStoredError):  # one replica of several may be late
        return Temporary(str(error))
    if isinstance(error, ResourceExhaustedResponse):
        return Temporary("429, too many requests", max(0, error.retry_after_s))
    if isinstance(error, QdrantException) and "Retry-After" in str(error):  # a date, which the client cannot parse
        return Temporary("429, too many requests")
    if isinstance(error, UnexpectedResponse) and _is_temporary_status(error.status_code):
        return Temporary(f"{error.status_code} {error.reason_phrase}".strip(), _retry_after_s(error))
    if isinstance(error, ResponseHandlingException):
        return Temporary(_describe_error(error))
    return None


def _retry_after_s(error: UnexpectedResponse) -> float | None:
    """The wait that the server asks for; None if it does not, or if it is no number of seconds."""
    asked = str(error.headers.get("Retry-After", "")) if error.headers is not None else ""
    return float(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else None


def _describe_error(error: Exception) -> str:
    if isinstance(error, UnexpectedResponse):
        hint = {401: ". Pass the API key with --api-key-env VAR", 403: ". The API key has no write access"}
        status = error.status_code or 0
        if 300 <= status < 400:
            where = str(error.headers.get("Location", "")) if error.headers is not None else ""
            hint[status] = (
                f". It redirects to {where[:SHOWN_CHARACTERS] or 'nowhere'}: give the address of Qdrant itself"
            )
        content = error.content.decode("utf-8", "replace")[:SHOWN_CHARACTERS]
        return f"{error.status_code} {error.reason_phrase}{hint.get(status, '')} {content}".strip()
    if isinstance(error, ResponseHandlingException):
        return f"{type(error.source).__name__}: {' '.join(str(error.source).split())[:SHOWN_CHARACTERS]}"
    if isinstance(error, ResourceExhaustedResponse):
        return f"429, too many requests: {_shown(error.message)}"  # whose type the client does not check
    return str(error)
