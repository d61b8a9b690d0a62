"""Answers of the API: JSON, and errors in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ultimate_embedder.markup import escaped
from ultimate_embedder.terminal import printable, valid_unicode

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 400, 401, 403, 404
TOO_LARGE, WRONG_TYPE, MISDIRECTED, FAILED, UNAVAILABLE = 413, 415, 421, 500, 503
LONGEST_MESSAGE = 4000
WRITE_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


class ApiError(Exception):
    """A request that cannot be answered: what is wrong with it, and which of its fields."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, headers: Any = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers: dict[str, str] = dict(headers or {})


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(orjson.dumps(content, option=WRITE_JSON), status, headers, "application/json")


def shortened(message: str) -> str:
    """A message without most of what a client may have made it long with."""
    return message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]} …"


def error_answer(error: ApiError, headers: Headers) -> Response:
    """An error as clients of OpenAI expect it; a small page for a browser that was sent here."""
    told = shortened(error.message)  # texts of requests and of outputs may be in it
    if "text/html" in headers.get("accept", ""):
        words = f"<h1>{error.status}</h1><p>{escaped(told)}</p>"
        page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{error.status}</title>{words}'
        return HTMLResponse(page, error.status, error.headers)
    kind = "server_error" if error.status >= FAILED else "invalid_request_error"
    message = printable(valid_unicode(told))
    content = {"message": message, "type": kind, "param": error.param and shortened(error.param), "code": error.code}
    return json_answer({"error": content}, error.status, error.headers)


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object of a request; raises `ApiError`.

    Only what is declared as JSON is read: a form of another web site cannot send that without being asked for leave.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(WRONG_TYPE, "Send JSON, with the header 'Content-Type: application/json'.")
    try:
        content = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise ApiError(BAD_REQUEST, f"The body is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ApiError(BAD_REQUEST, "The body must be a JSON object.")
    return content
