"""The application: what is answered at which path."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ultimate_embedder.errors import UltimateEmbedderError, traceback_of
from ultimate_embedder.output import Output
from ultimate_embedder.serve.address import allowed_names
from ultimate_embedder.serve.answers import FAILED, UNAVAILABLE, ApiError, error_answer
from ultimate_embedder.serve.embeddings import EmbeddingsApi
from ultimate_embedder.serve.encoders import Encoders
from ultimate_embedder.serve.guard import Access, Guard
from ultimate_embedder.serve.options import ServeConfig
from ultimate_embedder.serve.run_pages import RunPages
from ultimate_embedder.serve.search import SearchApi, Searching
from ultimate_embedder.serve.search_page import SearchPage
from ultimate_embedder.serve.static import static_file
from ultimate_embedder.serve.worker import Worker

LOGGER = "serve"  # not that of this package, which tells of runs


@dataclass(frozen=True)
class Site:
    """What a server holds open."""

    output: Output
    access: Access
    encoders: Encoders
    searching: Searching
    worker: Worker = field(default_factory=Worker)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def open(cls, config: ServeConfig, port: int) -> Site:
        """What a server at that port needs."""
        address, place = config.address, config.place
        names = allowed_names(address, config.allowed_hosts)
        access = Access(names, any_ip=address.is_any, token=config.token, port=port)
        output = Output(config.folder)
        encoders = Encoders(output, place.hub, place.model_folders)
        return cls(output, access, encoders, Searching(encoders, place, config.reranker))

    def close(self) -> None:
        """Close what is open, unless it is still in use."""
        self.worker.leave(self.searching.close)


def make_app(site: Site) -> ASGIApp:
    """The application of a site, guarded."""
    embeddings = EmbeddingsApi(site.output, site.encoders, site.worker)
    search, search_page = SearchApi(site.searching, site.worker), SearchPage(site.output, site.searching, site.worker)
    run = RunPages(site.output, site.encoders.states, site.stopping)
    routes = [
        Route("/", run.live.page),
        Route("/live", run.live.stream),
        Route("/live/check", run.live.check),
        Route("/state", run.state),
        Route("/metrics", run.metrics),
        Route("/report", run.report),
        Route("/search", search_page.page),
        Route("/search", search.search, methods=["POST"]),
        Route("/search/results", search_page.results),
        Route("/static/{name}", static_file),
        Route("/v1/embeddings", embeddings.embed, methods=["POST"]),
        Route("/v1/models", embeddings.models),
        Route("/v1/models/{name:path}", embeddings.model),
    ]
    handlers: dict[Any, Any] = {
        ApiError: _api_error,
        HTTPException: _http_error,
        UltimateEmbedderError: _own_error,
        Exception: _unexpected,
    }
    return Guard(Starlette(routes=routes, exception_handlers=handlers), site.access)


async def _api_error(request: Request, error: ApiError) -> Response:
    return error_answer(error, request.headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}."
    return error_answer(ApiError(error.status_code, message, headers=error.headers), request.headers)


async def _own_error(request: Request, error: UltimateEmbedderError) -> Response:
    return error_answer(ApiError(UNAVAILABLE, str(error)), request.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    logging.getLogger(LOGGER).error("%s", traceback_of(error))
    message = f"{type(error).__name__}: what the server printed says more."
    return error_answer(ApiError(FAILED, message, code="internal_error"), request.headers)
