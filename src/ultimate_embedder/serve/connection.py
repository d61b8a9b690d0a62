"""A connection of a client: it is closed if its request does not arrive."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 20.0  # for the head of a request; that of the body is limited by `guard`


class Connection(H11Protocol):
    """Gives its place to others if its client sends nothing, sends without end, or does not read the answer."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        """Wait for the next one."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(REQUEST_S, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # else it is being answered
            self.transport.abort()
