"""What may go wrong with a call to Qdrant: which failures pass, and each of them in words."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from grpc import RpcError, StatusCode  # type: ignore[import-untyped]
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from ultimate_embedder.retry import Temporary

FAILURES = (ApiException, QdrantException, RpcError)
# what the client raises for answers that it does not expect: no JSON, no UTF-8, other types, nothing at all
UNEXPECTED_ANSWER = (ValueError, TypeError, AttributeError, KeyError, IndexError, AssertionError, RecursionError)
SHOWN_CHARACTERS = 200
NO_KEY = ". Pass the API key with --api-key-env VAR, or in QDRANT_API_KEY"
NO_ACCESS = ". The API key has no write access"
TEMPORARY_CODES = (
    StatusCode.UNAVAILABLE,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.RESOURCE_EXHAUSTED,
    StatusCode.INTERNAL,
    StatusCode.ABORTED,
    StatusCode.UNKNOWN,
)
# of a server that has not answered yet: a wrong address, or nothing runs there, and waiting does not help
UNREACHABLE_TRIES = 3
UNREACHABLE = ("ConnectError", "ConnectTimeout")
HINTS: dict[Any, str] = {
    HTTPStatus.UNAUTHORIZED: NO_KEY,
    HTTPStatus.FORBIDDEN: NO_ACCESS,
    StatusCode.UNAUTHENTICATED: NO_KEY,
    StatusCode.PERMISSION_DENIED: NO_ACCESS,
    StatusCode.UNAVAILABLE: ". Check --grpc-port, or drop --grpc",
}


def shown(value: Any) -> str:
    """What a server said, cut to a length that can be shown."""
    return str(value)[:SHOWN_CHARACTERS]


def is_temporary_status(status: int | None) -> bool:
    """Whether a request with this answer is worth another try."""
    return status is not None and (status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR)


class NotStoredError(Exception):
    """A point that the server has acknowledged and does not have."""


def temporary(error: Exception) -> Temporary | None:
    """Why a failure may pass, and the wait that the server asks for; None if it will not pass."""
    if isinstance(error, NotStoredError):
        return Temporary(str(error))
    if isinstance(error, ResourceExhaustedResponse):
        return Temporary("429, too many requests", max(0, error.retry_after_s))
    if isinstance(error, QdrantException) and "Retry-After" in str(error):  # a date, which the client cannot parse
        return Temporary("429, too many requests")
    if isinstance(error, UnexpectedResponse) and is_temporary_status(error.status_code):
        return Temporary(f"{error.status_code} {error.reason_phrase}".strip(), _retry_after_s(error))
    if isinstance(error, ResponseHandlingException):
        return Temporary(describe(error))
    if isinstance(error, RpcError) and _code(error) in TEMPORARY_CODES:
        return Temporary(_code(error).name)
    return None


def is_unreachable(error: Exception) -> bool:
    """Whether there was no connection at all."""
    return isinstance(error, ResponseHandlingException) and type(error.source).__name__ in UNREACHABLE


def describe(error: Exception) -> str:
    """A failure in words."""
    if isinstance(error, UnexpectedResponse):
        status = error.status_code or 0
        hint = HINTS.get(status, "")
        if 300 <= status < 400:
            where = str(error.headers.get("Location", "")) if error.headers is not None else ""
            hint = f". It redirects to {shown(where) or 'nowhere'}: give the address of Qdrant itself"
        content = shown(error.content.decode("utf-8", "replace"))
        return f"{error.status_code} {error.reason_phrase}{hint} {content}".strip()
    if isinstance(error, ResponseHandlingException):
        return f"{type(error.source).__name__}: {shown(' '.join(str(error.source).split()))}"
    if isinstance(error, ResourceExhaustedResponse):
        return f"429, too many requests: {shown(error.message)}"  # whose type the client does not check
    if isinstance(error, RpcError):
        details = getattr(error, "details", lambda: None)()
        return f"{_code(error).name}{HINTS.get(_code(error), '')} {shown(details or '')}".strip()
    return str(error)


def _code(error: RpcError) -> StatusCode:
    code = getattr(error, "code", lambda: None)()
    return code if isinstance(code, StatusCode) else StatusCode.UNKNOWN


def _retry_after_s(error: UnexpectedResponse) -> float | None:
    """The wait that the server asks for; None if it does not, or if it is no number of seconds."""
    asked = str(error.headers.get("Retry-After", "")) if error.headers is not None else ""
    return float(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else None
