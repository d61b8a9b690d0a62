"""The live page: parts of it are sent to every browser that looks, whenever they change (server-sent events)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ultimate_embedder._version import __version__
from ultimate_embedder.report import LiveParts
from ultimate_embedder.serve.answers import UNAVAILABLE, ApiError, json_answer
from ultimate_embedder.serve.pages import live_page

EVERY_S = 1.0
STILL_HERE_S = 15.0  # proxies close connections on which nothing is sent
MOST_VIEWERS = 32


class LiveView:
    """Draws the page once a second at most, for however many browsers, and only while one looks."""

    def __init__(self, draw: Callable[[], LiveParts], stopping: asyncio.Event) -> None:
        self._draw = draw
        self._stopping = stopping
        self._viewers = 0
        self._one = asyncio.Lock()
        self._drawn: tuple[float, LiveParts] | None = None

    async def now(self) -> LiveParts:
        """The page as it is now."""
        async with self._one:
            if self._drawn is None or time.monotonic() - self._drawn[0] >= EVERY_S:
                drawn = await run_in_threadpool(self._draw)
                self._drawn = time.monotonic(), drawn
            return self._drawn[1]

    async def page(self, request: Request) -> Response:
        """`GET /`."""
        drawn = await self.now()
        return live_page(drawn.parts, drawn.title)

    async def check(self, request: Request) -> Response:
        """`GET /live/check`: whether the page may connect."""
        return json_answer({"version": __version__})

    async def stream(self, request: Request) -> Response:
        """`GET /live`."""
        if self._viewers >= MOST_VIEWERS:
            raise ApiError(UNAVAILABLE, f"{MOST_VIEWERS} pages are open already. Close one.", code="busy")
        return StreamingResponse(self._changes(request), media_type="text/event-stream")

    async def _changes(self, request: Request) -> AsyncIterator[bytes]:
        self._viewers += 1
        sent: dict[str, str] = {}
        last = time.monotonic()
        try:
            while not self._stopping.is_set() and not await request.is_disconnected():
                drawn = await self.now()
                changed = {name: part for name, part in drawn.parts.items() if sent.get(name) != part}
                if changed or time.monotonic() - last > STILL_HERE_S:
                    sent.update(changed)
                    last = time.monotonic()
                    yield _event({"version": __version__, "title": drawn.title, "parts": changed})
                await self._wait()
        finally:
            self._viewers -= 1

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), EVERY_S)
        except asyncio.TimeoutError:
            return


def _event(content: dict[str, object]) -> bytes:
    return b"event: parts\ndata: " + orjson.dumps(content) + b"\n\n"
