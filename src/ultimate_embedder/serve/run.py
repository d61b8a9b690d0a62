"""Run the server until it is stopped."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from types import FrameType
from urllib.parse import quote

import uvicorn

from ultimate_embedder.output import open_output
from ultimate_embedder.serve.address import bind
from ultimate_embedder.serve.app import Site, make_app
from ultimate_embedder.serve.options import ServeConfig

MOST_CONNECTIONS = 200
SHUTDOWN_S = 3  # for requests that are being answered


def run_server(config: ServeConfig, report: Callable[[str], None]) -> None:
    """Serve an output until Ctrl-C or SIGTERM; `report` gets the address, once the server answers there.

    Raises `UsageError` if the folder is not an output, or if the port is taken.
    """
    open_output(config.folder)
    listener = bind(config.address, str(config.folder))
    port = int(listener.getsockname()[1])
    site = Site.open(config, port)
    settings = uvicorn.Config(
        make_app(site),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    address = config.address.url(port)

    def started() -> None:
        link = f"{address}?token={quote(config.token, safe='')}" if config.token else address
        report(link)
        if config.open:  # on a thread: some browsers keep whoever starts them
            threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()

    try:
        _Server(settings, site, started).run([listener])
    finally:
        site.close()
        listener.close()


class _Server(uvicorn.Server):
    """Ends open streams when it is stopped, and is not killed by the signal that stopped it."""

    def __init__(self, settings: uvicorn.Config, site: Site, started: Callable[[], None]) -> None:
        super().__init__(settings)
        self._site = site
        self._on_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._site.stopping.set()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
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
