"""Run the server until it is stopped."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Generator
from types import FrameType
from urllib.parse import quote

import uvicorn

from ultimate_embedder.output import open_output
from ultimate_embedder.serve.address import bind
from ultimate_embedder.serve.app import Site, make_app
from ultimate_embedder.serve.connection import Connection
from ultimate_embedder.serve.options import ServeConfig

MOST_CONNECTIONS = 200
SHUTDOWN_S = 3  # for requests that are being answered


def open_server(config: ServeConfig, report: Callable[[str], None]) -> Server:
    """Take the port; `run()` of the result serves until Ctrl-C or SIGTERM.

    `report` gets the address, once the server answers there. Raises `UsageError` if the folder is not an output, or if
    the port is taken.
    """
    open_output(config.folder)
    listener = bind(config.address, str(config.folder))
    port = int(listener.getsockname()[1])
    address = config.address.url(port)
    link = f"{address}?token={quote(config.token, safe='')}" if config.token else address

    def started() -> None:
        report(link)
        if config.open:  # on a thread: some browsers keep whoever starts them
            threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()

    return Server(Site.open(config, port), listener, started)


class Server(uvicorn.Server):
    """Ends open streams when it is stopped, and is not killed by the signal that stopped it."""

    def __init__(self, site: Site, listener: socket.socket, started: Callable[[], None]) -> None:
        settings = uvicorn.Config(
            make_app(site),
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # its warnings are about clients, and any client can cause them
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
        super().__init__(settings)
        self._site = site
        self._listener = listener
        self._on_started = started

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until it is stopped."""
        try:
            super().run([self._listener])
        finally:
            self._site.close()
            self._listener.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and tell so."""
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams first: they would keep their connections for ever."""
        self._site.stopping.set()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop on Ctrl-C and SIGTERM; at once, the second time."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.force_exit = self.should_exit  # the second time
            self.should_exit = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
