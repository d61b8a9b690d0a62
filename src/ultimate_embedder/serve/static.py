"""The files of the page, which are part of the package."""

from __future__ import annotations

import functools
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from ultimate_embedder.report import REPORT_CSS
from ultimate_embedder.serve.answers import NOT_FOUND, ApiError

TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
FILES = ("icon.svg", "live.js", "report.css", "search.js", "serve.css")
"""All that can be asked for: no path is ever made of a name that a client sends."""


@functools.cache
def _content(name: str) -> bytes:
    if name == "report.css":  # the page looks like the report
        return REPORT_CSS.encode()
    return (resources.files("ultimate_embedder.serve") / "static" / name).read_bytes()


async def static_file(request: Request) -> Response:
    """`GET /static/NAME`."""
    name = request.path_params["name"]
    if name not in FILES:
        raise ApiError(NOT_FOUND, "There is no such file.")
    return Response(_content(name), media_type=TYPES[name.rpartition(".")[2]], headers={"Cache-Control": "no-cache"})
